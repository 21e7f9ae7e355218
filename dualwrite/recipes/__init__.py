"""Dual writes to a database and to Kafka: the recipes of KIP-939.

Open first: `writer.py`, the two faces (threads, asyncio) over any backend and either slot policy. Arrows point outward
only: `sqlalchemy`, `psycopg`, `asyncpg` and `stores` import `writer.py`, which imports `transactional.py`, `pool` and
`core`. `postgres` is shared by `psycopg` and `asyncpg`. `core` imports no database library. `capabilities.py` lists the
features that a backend lacks.
"""
