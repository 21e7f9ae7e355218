"""The task's side of a batch: one attempt to write a partition, in the Kafka transaction of a leased id.

May import `store/` and the modules at the top, but not `driver/` (except as a type). A Python worker imports this
package for every task that it runs, so it loads pyarrow, SQLAlchemy and the producer only when a task needs them.

Open first: `writing.py`; `states.py` has the states of an attempt, which `driver/` and `store/` share.
"""
