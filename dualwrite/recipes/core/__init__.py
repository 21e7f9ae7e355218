"""One dual write, step by step, whatever the database: its protocol with the database and with Kafka.

May import `sql` for what a database is, and no database library. Open first: `coordinator.py`, then `store.py`, which
says what a database must be able to do. `dual_write.py` has the handle of a block; `owned_id.py`, `take_over.py` and
`lost_commits.py` are the coordinator's parts.
"""
