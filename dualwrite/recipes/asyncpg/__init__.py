"""The backend asyncpg: dual writes for asyncio without SQLAlchemy, alone and pooled.

Open first: `writer.py`, then `transaction.py`. `driver.py` is the one place that goes past asyncpg's public interface.

Imports of its neighbours: `core`, `pool`, `postgres`, `sql`.
"""
