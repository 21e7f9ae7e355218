"""Flights: a stream of events into a Postgres table and a Kafka topic, through dozens of kills of the writing process.

    python -m examples.flights                       # or: make demo
    python -m examples.flights --input mine.csv --key customer

A worker process reads events, writes each group of them to the table `flight_events` and to a topic in one dual
write, and dies by SIGKILL at a pause point that a seeded plan has chosen. It is started again until everything is
written. Then table and topic are compared, record by record and in order per key. A second worker does the usual
naive thing (commit the database, then produce) and dies at the corresponding places, for contrast.

What to read first: `dual_write.py` is the whole of what an application has to write; `naive_write.py` is what it
replaces. `kill_plan.py` decides where workers die, `lives.py` runs them, `comparison.py` judges the outcome.
"""
