"""Transactions that decide by tables of the caller's own, as those of the Spark sink's commit store do.

All that the sink uses of the recipes is here. The modules that only a decision needs are imported when one is made.
"""
# ruff: noqa: I001 - one import per module; importing each name as itself exports it

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from dualwrite.recipes.core.database_errors import is_conflict as is_conflict, sqlstate_of as sqlstate_of
from dualwrite.recipes.core.store import wait_given_up
from dualwrite.recipes.sql.postgres import (
    MAKE_DURABLE,
    LOCK_NOT_AVAILABLE as LOCK_NOT_AVAILABLE,
    RAISE,
    WITNESS_MESSAGE,
)
from dualwrite.recipes.sql.socket_timeout import fileno_of as fileno_of
from dualwrite.recipes.sqlalchemy.drivers import commit_message, deciding
from dualwrite.recipes.sqlalchemy.engines import (
    locks_whole_database as locks_whole_database,
    prepare_nothing as prepare_nothing,
)
from dualwrite.recipes.sqlalchemy.examination import examine as examine
from dualwrite.recipes.sqlalchemy.tables import exact_text as exact_text

if TYPE_CHECKING:
    from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction


def raise_durability(connection: sa.Connection) -> None:
    """Make this COMMIT durable; a setting of the session would be another client's behind PgBouncer."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT {RAISE}")


def commit_durably(connection: sa.Connection) -> None:
    """Commit. Raises NotDurableError if the server gave up waiting for a standby: the commit might be lost."""
    with deciding(connection) as wait:
        connection.commit()
    if wait.was_given_up:
        raise wait_given_up(None)


def witness(connection: sa.Connection) -> bool:
    """Write to the log of the database, so that COMMIT waits for the standby. Return False where a change has to."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT {WITNESS_MESSAGE}")
        return True
    return locks_whole_database(connection.dialect)


def deciding_engine(engine: sa.Engine) -> sa.Engine:
    """Return the engine for decisions, which has listeners of its own.

    They cannot be added to an engine that other threads may be using. SQLite's listeners belong to its connections, so
    there the engine itself is used, and gets them at once.
    """
    from dualwrite.recipes.sqlalchemy.events import watch

    if not locks_whole_database(engine.dialect):
        engine = engine.execution_options()
    watch(engine)
    return engine


def decision_on(connection: sa.Connection, engine: sa.Engine) -> SqlAlchemyTransaction:
    """Return a transaction that is a decision, on a connection of a `deciding_engine`."""
    from dualwrite.recipes.core.buffer import RecordBuffer
    from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction

    work = SqlAlchemyTransaction(connection, engine, RecordBuffer(), owned=True)
    if work.connection.dialect.name == "postgresql":
        work.decides_by(commit_message(work.connection, work.driver, MAKE_DURABLE, "", {}))
    else:
        work.decides()
    return work
