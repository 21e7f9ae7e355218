"""An engine for what goes on beside the blocks of an application, with connections of its own."""

from __future__ import annotations

import sqlalchemy as sa

from dualwrite.recipes.sqlalchemy.prepared_statements import prepare_nothing

_SHARES_ONE_DATABASE_PER_CONNECTION = (sa.pool.StaticPool, sa.pool.SingletonThreadPool, sa.pool.AssertionPool)


def background_engine(engine: sa.Engine) -> sa.Engine:
    """The same database, by connections that `engine`'s pool does not count; not before `FirstConnection`.

    All of that pool's may be held by blocks which wait for what is done here. A pool that has one connection (SQLite
    in memory) is shared all the same, because another connection would be another database.
    """
    return engine if shares_one_connection(engine) else engine_beside(engine)


def shares_one_connection(engine: sa.Engine) -> bool:
    """Whether its pool has one connection, so that another one may be to another database (SQLite in memory)."""
    return isinstance(engine.pool, _SHARES_ONE_DATABASE_PER_CONNECTION)


def engine_beside(engine: sa.Engine) -> sa.Engine:
    """The same, by a pool of its own whatever the other one is."""
    made = sa.Engine(
        engine.pool.recreate(), engine.dialect, engine.url, execution_options=engine.get_execution_options()
    )
    if engine.dialect.name == "sqlite":
        return made
    prepare_nothing(made)
    return made.execution_options(isolation_level="READ COMMITTED")


class FirstConnection:
    """Lets `engine` connect before any other engine that shares its dialect does.

    With the first connection the dialect asks the database what it can do. Only the pool that does so makes others
    wait; a second pool would go on with a dialect that knows half of it.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._made = False

    def make(self) -> None:
        """Once; harmless when repeated, by several threads at once too."""
        if not self._made:
            self._engine.connect().close()
            self._made = True
