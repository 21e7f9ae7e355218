"""The backend psycopg: dual writes without SQLAlchemy, for threads and for asyncio, alone and pooled.

Open first: `writer.py`, then `transaction.py`. `driver.py` and `commit_message.py` go past psycopg's public interface.

Imports of its neighbours: `core`, `pool`, `postgres`, `sql`.
"""
