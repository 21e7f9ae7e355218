"""The backend psycopg: dual writes without SQLAlchemy, for threads and for asyncio, alone and pooled.

May import `core`, `sql`, `pool` and `writer.py`; not SQLAlchemy. Open first: `writer.py`, then `adapter.py`, which
locks and writes the row that decides. `driver.py` is the one place that goes past psycopg's public interface.
"""
