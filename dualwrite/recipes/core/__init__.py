"""One dual write, step by step, whatever the database: its protocol with the database and with Kafka.

Imports no database. Open first: `coordinator.py`, then `store.py`, which says what a database must be able to do.
"""
