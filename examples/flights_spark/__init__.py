"""Flights through Spark: into a Kafka topic, a Postgres table and running totals, while the driver is killed again.

    python -m examples.flights_spark                 # or: make demo-spark

One Spark application runs two queries on the same input. One writes with this sink: records, rows and totals in the
same commit. The other writes as Spark users do today, which is at least once: foreachBatch, a producer, an insert. The
whole application (driver, JVM and all) is killed with SIGKILL at random moments and started again with another number
of tasks, until everything is written. Then input, topic, table and totals are compared, record by record.

What to read first: `exactly_once.py` is the whole of what an application has to write; `at_least_once.py` is what it
replaces. `kill_plan.py` decides when the application dies, `lives.py` runs it, `verdict.py` judges, `plot.py` draws.
"""
