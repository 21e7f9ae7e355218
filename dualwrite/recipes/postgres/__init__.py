"""Dual writes on PostgreSQL through a driver alone: what the backends `psycopg` and `asyncpg` share.

Covers the transaction of a block, the tables, the identity and the durability of a database, connections that are kept,
and leases. A driver's folder has a subclass of each that says how its connections do it.
May import `core`, `sql`, `pool` and `writer.py`; no database library. Open first: `transaction.py`, then `adapter.py`.
"""
