"""The backend asyncpg: dual writes for asyncio without SQLAlchemy, alone, pooled and in groups.

May import `core`, `sql`, `pool`, `postgres` and `writer.py`; not SQLAlchemy. Open first: `writer.py`, then
`transaction.py`. `driver.py` is the one place that goes past asyncpg's public interface.
"""
