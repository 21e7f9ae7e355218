"""Flights through Spark: to a Kafka topic, a Postgres table and running totals, while the driver is killed often.

    python -m examples.flights_spark                 # or: make demo-spark

One Spark application runs two queries on the same input. One writes with this sink: records, rows and totals in the
same commit. The other writes at least once, as Spark users do today: foreachBatch, a producer, an insert. The whole
application (driver and JVM) is killed with SIGKILL at random moments and started again with another number of tasks,
until everything is written. Then input, topic, table and totals are compared, record by record.

Read first: `exactly_once.py` is all that an application has to write; `at_least_once.py` is the way that it replaces.
`kill_plan.py` decides when the application is killed, `lives.py` runs it, `verdict.py` compares the results, `plot.py`
plots the run.
"""
