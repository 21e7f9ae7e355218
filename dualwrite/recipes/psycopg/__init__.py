"""The backend psycopg: dual writes without SQLAlchemy, for threads and for asyncio, alone and pooled.

May import `core`, `sql`, `pool`, `postgres` and `writer.py`; not SQLAlchemy. Open first: `writer.py`, then
`transaction.py`. `driver.py` is the one place that goes past psycopg's public interface.
"""
