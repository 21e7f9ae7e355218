"""The backend asyncpg: dual writes for asyncio without SQLAlchemy, alone and pooled.

May import `core`, `sql`, `pool`, `postgres` and `writer.py`; not SQLAlchemy. Open first: `writer.py`, then
`transaction.py`. `driver.py` is the one place that goes past asyncpg's public interface.
"""
