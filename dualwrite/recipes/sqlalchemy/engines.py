"""Engines for statements outside the blocks, and the locks and snapshots of transactions on an engine."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from dualwrite.recipes.sql.postgres import sees_now

if TYPE_CHECKING:  # tasks of the Spark sink need no ORM
    from sqlalchemy.orm import SessionTransaction

_READ_COMMITTED: Final = "READ COMMITTED"
_KEEP_SNAPSHOTS: Final = ("postgresql", "mysql", "mariadb")
"""The databases with outboxes whose transactions may keep a snapshot."""
_SHARES_ONE_DATABASE_PER_CONNECTION = (sa.pool.StaticPool, sa.pool.SingletonThreadPool, sa.pool.AssertionPool)


def connections_of(transaction: SessionTransaction) -> Iterable[sa.Connection]:
    """Return the connections that the root transaction of a Session has used so far, some of them twice.

    SQLAlchemy keeps them by engine and by connection. The public attribute of SQLAlchemy 2.1 takes eight calls.
    """
    return map(itemgetter(0), vars(transaction)["_connections"].values())


def background_engine(engine: sa.Engine) -> sa.Engine:
    """Return an engine to the same database, whose connections do not count towards `engine`'s pool.

    Use it only after `engine` has connected. Blocks may hold all connections of the other pool while they wait for
    statements on this engine. A pool with a single connection (SQLite in memory) is shared nevertheless, because
    another connection would be another database.
    """
    return engine if shares_one_connection(engine) else _with_pool(engine, engine.pool.recreate())


def shares_one_connection(engine: sa.Engine) -> bool:
    """Return whether the pool has a single connection, because a second one may reach another database."""
    return isinstance(engine.pool, _SHARES_ONE_DATABASE_PER_CONNECTION)


def engine_without_pool(engine: sa.Engine) -> sa.Engine:
    """Return an engine to the same database that makes a connection for each use, and closes it.

    It has no lock that an exception of a signal's handler could leave held. Make it once, and outside of blocks:
    SQLAlchemy gets each engine's logger from `logging`, whose one lock could be left held, for all threads, for good.
    `_creator` is not public; tests/recipes/test_state_table.py fails if it disappears.
    """
    pool = engine.pool
    return _with_pool(engine, sa.pool.NullPool(pool._creator, dialect=engine.dialect, _dispatch=pool.dispatch))  # noqa: SLF001


def at_read_committed(engine: sa.Engine) -> sa.Engine:
    """Return the same engine for transactions that have to see what others have committed meanwhile.

    In REPEATABLE READ, one that has waited for the lock of a state row reads other tables as they were before, and
    InnoDB locks the gaps between rows, in which blocks insert.
    """
    level = engine.get_execution_options().get("isolation_level")
    if level == _READ_COMMITTED or engine.dialect.name not in _KEEP_SNAPSHOTS:
        return engine
    return engine.execution_options(isolation_level=_READ_COMMITTED)


def _with_pool(engine: sa.Engine, pool: sa.Pool) -> sa.Engine:
    options = dict(engine.get_execution_options())
    if engine.dialect.name != "sqlite":
        # Not by `execution_options()` of the new engine: the level inherited from `engine` would override it.
        options["isolation_level"] = _READ_COMMITTED
    made = sa.Engine(pool, engine.dialect, engine.url, execution_options=options)
    if engine.dialect.name != "sqlite":
        prepare_nothing(made)
    else:
        _begin_as(engine, made)
    return made


def _begin_as(engine: sa.Engine, made: sa.Engine) -> None:
    """Let an engine to SQLite call the listeners of `engine` that send BEGIN, which sqlite3 may be set not to send."""
    of_class = list(made.dispatch.begin)
    for listener in engine.dispatch.begin:
        if listener not in of_class:
            sa.event.listen(made, "begin", listener)


def prepare_nothing(engine: sa.Engine) -> None:
    """Disable server-side prepared statements for new psycopg connections of `engine`.

    Behind PgBouncer in transaction mode, psycopg's name for a prepared statement may refer to a statement of another
    client, which would be executed instead.
    """
    if engine.dialect.name == "postgresql" and engine.dialect.driver in ("psycopg", "psycopg_async"):
        sa.event.listen(engine, "connect", _on_connect)


def _on_connect(connection: object, record: sa.pool.ConnectionPoolEntry) -> None:
    driver: Any = record.driver_connection
    driver.prepare_threshold = None


def locks_whole_database(dialect: sa.Dialect) -> bool:
    """Return whether a writer excludes all others (SQLite), so that no lease can be taken in the middle of a block."""
    return dialect.name == "sqlite"


def is_mysql(dialect: sa.Dialect) -> bool:
    return dialect.name in ("mysql", "mariadb")


def keeps_a_snapshot(connection: sa.Connection) -> bool:
    """Return whether locking a row that was changed after the transaction began would fail, as from REPEATABLE READ on.

    MySQL's REPEATABLE READ is an exception: a locking read sees the newest state. MariaDB fails since 11.6
    (innodb_snapshot_isolation).
    """
    level = connection.get_execution_options().get("isolation_level") or connection.dialect.default_isolation_level
    if sees_now(level):
        return False
    is_mysql = connection.dialect.name == "mysql" and not getattr(connection.dialect, "is_mariadb", False)
    return not (is_mysql and level == "REPEATABLE READ")
