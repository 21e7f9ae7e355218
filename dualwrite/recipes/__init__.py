"""Dual writes to a database and to Kafka: the recipes of KIP-939.

Open first: `writer.py`, the two faces (threads, asyncio) over any backend and either slot policy. Arrows point outward
only: `sqlalchemy`, `psycopg` and `asyncpg` import `writer.py`, which imports `transactional.py`, `pool` and
`core`. `postgres` is shared by `psycopg` and `asyncpg`. `core` imports no database library.
"""
