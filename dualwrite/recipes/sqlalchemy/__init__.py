"""The backend SQLAlchemy: dual writes on an Engine, a Connection or a Session, for threads and for asyncio.

Open first: `writer.py`; `steps.py` locks and writes the row that decides. `drivers.py` and `session_commit_hook.py` are
the places that go past SQLAlchemy's public interface.

Imports of its neighbours: `asyncpg`, `core`, `pool`, `psycopg`, `sql`.
"""
