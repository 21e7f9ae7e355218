"""The task's side of a batch: one attempt to write a partition, in the Kafka transaction of a leased id.

A Python worker imports this package for every task that it runs, so it loads pyarrow, SQLAlchemy and the producer only
when a task needs them. Open first: `writing.py`.

Imports of its neighbours: `lake`, `store`.
"""
