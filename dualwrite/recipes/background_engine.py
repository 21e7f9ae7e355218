"""An engine for what goes on beside the blocks of an application, with connections of its own."""

from __future__ import annotations

import sqlalchemy as sa

_SHARES_ONE_DATABASE_PER_CONNECTION = (sa.pool.StaticPool, sa.pool.SingletonThreadPool, sa.pool.AssertionPool)


def background_engine(engine: sa.Engine) -> sa.Engine:
    """The same database, by connections that `engine`'s pool does not count.

    All of that pool's may be held by blocks which wait for what is done here. A pool that has one connection (SQLite
    in memory) is shared all the same, because another connection would be another database.
    """
    if isinstance(engine.pool, _SHARES_ONE_DATABASE_PER_CONNECTION):
        return engine
    made = sa.Engine(
        engine.pool.recreate(), engine.dialect, engine.url, execution_options=engine.get_execution_options()
    )
    if engine.dialect.name == "sqlite":
        return made
    return made.execution_options(isolation_level="READ COMMITTED")
