"""Flights: write a stream of events to a Postgres table and a Kafka topic while the writing process is killed often.

    python -m examples.flights                       # or: make demo
    python -m examples.flights --input mine.csv --key customer

A worker process reads events and writes each group of them to the table `flight_events` and to a topic, in one dual
write. It kills itself with SIGKILL at a pause point chosen by a seeded plan, and is started again until everything is
written. Then table and topic are compared, record by record and in order per key. For contrast, a second worker does
it the naive way (commit the database, then produce) and dies at the corresponding points.

Read first: `dual_write.py` is all that an application has to write; `naive_write.py` is the way that it replaces.
`kill_plan.py` decides where workers die, `lives.py` runs them, `comparison.py` compares the results.
"""
