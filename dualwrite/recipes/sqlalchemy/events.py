"""SQLAlchemy's events: they notify the dual write on a Connection, or of a Session, of what happens there."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.event.api import _event_key
from sqlalchemy.orm import Session, SessionTransaction, SessionTransactionOrigin

from dualwrite.errors import TransactionEndedInsideError
from dualwrite.outcome import Outcome, note_outcome, outcome_of
from dualwrite.recipes.sql.sqlite import raise_synchronous
from dualwrite.recipes.sqlalchemy.drivers import (
    ON_CONNECTION,
    after_statement,
    commits_by_itself,
    in_transaction,
    mark_transactions,
    notify_of_ends,
)
from dualwrite.recipes.sqlalchemy.engines import connections_of, is_mysql
from dualwrite.recipes.sqlalchemy.mysql_row_lock import note_undone
from dualwrite.recipes.sqlalchemy.own_statements import OWN, execute_as_own

# Remembered here, because `event.contains` identifies an engine by its id(), which a new engine may have inherited from
# one that was collected: the new engine would not be watched, and a swallowed error would end as a success.
_watched: weakref.WeakSet[sa.Engine | sa.Dialect] = weakref.WeakSet()
_watching = threading.Lock()


def watch(engine: sa.Engine) -> None:
    """Notify the transactions of dual writes on `engine` of statements, failures and commits. Harmless when repeated.

    The dialect notifies them. With listeners on an engine SQLAlchemy would look up the listeners of every event, which
    takes as many calls as a statement. SQLAlchemy iterates over listeners while other threads work, so they must stay
    registered: a listener that is removed while an error is handled replaces that error by a RuntimeError.
    """
    with _watching:
        if engine.dialect not in _watched:
            _watched.add(engine.dialect)
            _watch_dialect(engine)
        if engine.dialect.name == "sqlite" and engine not in _watched:
            _watched.add(engine)
            event.listen(engine, "savepoint", _begin_before_savepoint)
            event.listen(engine, "checkout", raise_synchronous)


def _watch_dialect(engine: sa.Engine) -> None:
    engine.dialect._has_events = True  # noqa: SLF001 - as `event.listen` sets, for `_on_error` too
    for name, listener in _ON_STATEMENTS.items():
        # before listeners that send the statement themselves; `event.listen` ignores `insert` here
        _event_key(engine, name, listener).base_listen(insert=True)
    event.listen(engine, "reset", partial(_roll_back_unfinished, engine.dialect))
    notify_of_ends(engine.dialect)
    mark_transactions(engine.dialect)


def _roll_back_unfinished(dialect: sa.Dialect, connection: Any, record: Any, state: sa.pool.PoolResetState) -> None:
    """Roll back, on its way back to the pool, a connection whose COMMIT raised before it was sent.

    SQLAlchemy takes its transaction for ended, and the next COMMIT of another user would make it permanent.
    """
    is_left = state.transaction_was_reset and state.asyncio_safe
    # not by `record`, which a detached connection does not have
    if is_left and in_transaction(dialect.get_driver_connection(connection)):
        dialect.do_rollback(connection)


def _begin_before_savepoint(connection: sa.Connection, name: str | None) -> None:
    """Send BEGIN: sqlite3 sends it only before the first change, and until then RELEASE of a savepoint is a COMMIT."""
    driver = connection.connection.driver_connection
    if in_transaction(driver) is False and not commits_by_itself(
        connection.dialect, connection.connection.dbapi_connection, driver
    ):
        connection.exec_driver_sql("BEGIN")


def _on_statement(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
    _tell_transaction(statement, context)
    if OWN not in context.execution_options:
        return False
    return execute_as_own(cursor, context, lambda: cursor.execute(statement, parameters))


def _on_statements(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
    _tell_transaction(statement, context)
    return False  # none of ours


def _on_statement_without_parameters(cursor: Any, statement: str, context: Any) -> bool:
    _tell_transaction(statement, context)
    return OWN in context.execution_options and execute_as_own(cursor, context, lambda: cursor.execute(statement))


def _tell_transaction(statement: str, context: Any) -> None:
    transaction = vars(context.root_connection).get(ON_CONNECTION)
    if transaction is not None and transaction.before_statement(statement):
        after_statement(context, transaction.after_statement)


_ON_STATEMENTS: dict[str, Callable[..., bool]] = {
    "do_execute": _on_statement,
    "do_executemany": _on_statements,
    "do_execute_no_params": _on_statement_without_parameters,
}


def commit_has_begun(connection: sa.Connection) -> None:
    transaction = vars(connection).get(ON_CONNECTION)
    if transaction is not None:
        transaction.commit_has_begun()


# These listen to all Sessions from the start: adding and removing listeners for each block costs more than the block's
# own statement.


@event.listens_for(Session, "after_begin")
def _after_begin(session: Session, transaction: SessionTransaction, connection: sa.Connection) -> None:
    ours = vars(session).get(ON_CONNECTION)
    if ours is not None:
        ours.refuse_second_database(connection)


@event.listens_for(Session, "after_transaction_create")
def _after_transaction_create(session: Session, transaction: SessionTransaction) -> None:
    """Set a savepoint at once.

    A Session would wait for the first statement. Then records sent before it would be outside the savepoint, and so
    would all statements on a Connection that the application holds. A Session that is bound to the Connection of a dual
    write may set one at its beginning, too: if it begins by itself, its first statement still says with which options.
    """
    if transaction.nested:
        root = session.get_transaction()
        for bind in {session.bind, *(() if root is None else connections_of(root))}:
            if _carries_a_dual_write(bind):
                session.connection(bind_arguments={"bind": bind})
    elif transaction.origin is SessionTransactionOrigin.BEGIN and _begins_by_savepoint(session):
        session.connection(bind_arguments={"bind": session.bind})


def _carries_a_dual_write(bind: sa.Engine | sa.Connection | None) -> TypeGuard[sa.Connection]:
    return isinstance(bind, sa.Connection) and ON_CONNECTION in vars(bind)


def _begins_by_savepoint(session: Session) -> bool:
    """Return whether the Session joins a dual write on its Connection, and ends only a part of it."""
    bind, mode = session.bind, session.join_transaction_mode
    return _carries_a_dual_write(bind) and (
        mode == "create_savepoint" or (mode == "conditional_savepoint" and bind.in_nested_transaction())
    )


def _on_error(context: ExceptionContext) -> None:
    connection = context.connection
    transaction = None if connection is None else vars(connection).get(ON_CONNECTION)
    is_refused_commit = context.statement is None and isinstance(
        context.original_exception, TransactionEndedInsideError
    )
    if transaction is not None and not is_refused_commit:
        transaction.remember_failure(context.original_exception, context.statement)
    is_foreign = context.dialect not in _watched
    if transaction is None and connection is not None and is_mysql(context.dialect) and not is_foreign:
        note_undone(connection, context.original_exception, connection.get_transaction())
    if context.sqlalchemy_exception is not None and outcome_of(context.original_exception) is not Outcome.UNKNOWN:
        note_outcome(context.sqlalchemy_exception, outcome_of(context.original_exception))  # it is raised instead
    is_ours = transaction is not None or (connection is not None and OWN in connection.get_execution_options())
    if is_ours and context.dialect.name == "sqlite":
        _keep_interrupted_connection(context)


# Before all other listeners, those of the class too: SQLAlchemy calls none behind one that raises, as one does that
# translates errors. It calls listeners of the class only for dialects with `_has_events`.
_of_all_engines: Any = sa.Engine
_event_key(_of_all_engines, "handle_error", _on_error).base_listen(insert=True)


def _keep_interrupted_connection(context: ExceptionContext) -> None:
    """Prevent SQLAlchemy from closing the connection after a cancellation and leaving the rollback to SQLite.

    SQLite keeps the lock of a closed connection for as long as one of its cursors is referenced, for instance by a
    traceback. The connection still works, so roll back as usual: the driver does that after the statement.
    """
    if not isinstance(context.original_exception, Exception):
        context.is_disconnect = False
