"""Dual writes on PostgreSQL through a driver alone: the common part of the backends `psycopg` and `asyncpg`.

Covers the transaction of a block, the tables, the identity and the durability of a database, kept connections, and
leases. Each driver's folder has subclasses for its own connections.
Imports no database library. Open first: `transaction.py`, then `adapter.py`.

Imports of its neighbours: `core`, `sql`.
"""
