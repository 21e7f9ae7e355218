"""Transactions of the commit store: locking, durability, retries, and a COMMIT that got no response."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from dualwrite.recipes.core.database_errors import is_conflict
from dualwrite.recipes.core.store import wait_given_up
from dualwrite.recipes.sql.postgres import DURABLE_COMMIT, RAISE, WITNESS_MESSAGE
from dualwrite.recipes.sqlalchemy.drivers import deciding
from dualwrite.recipes.sqlalchemy.engines import locks_whole_database
from spark_sink.errors import DecisionUnknownError, SinkError

ResultT = TypeVar("ResultT")

_CONFLICT_TRIES: Final = 5


def _raise_durability(connection: sa.Connection) -> None:
    """Make this COMMIT durable, overriding the role, the database and the URL: what Kafka is told must not be lost.

    Set in each transaction, because behind PgBouncer a session setting belongs to another client's session.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT {RAISE}")


def _commit(connection: sa.Connection) -> None:
    """Commit. Raises NotDurableError if the server gave up waiting for a standby: the commit might be lost."""
    driver: Any = connection.connection.driver_connection
    with deciding(connection.dialect.driver, driver) as wait:
        connection.commit()
    if wait.was_given_up:
        raise wait_given_up(None)


Intact = Callable[[], None]
"""A function that raises RecipeError or IllegalStateError if a transaction can no longer be the decision."""


class StoreTransactions:
    """Transactions on one engine, which take the locks they need with their first statement."""

    def __init__(
        self,
        engine: sa.Engine,
        check_tables: Callable[[], None],
        leave_no_trace: Callable[[sa.Connection], object],
    ) -> None:
        """Take `check_tables`, which raises SinkError for a missing table or column: it explains a failed statement.

        `leave_no_trace` changes a row and takes the change back, which a database without log messages logs.
        """
        self._engine = _read_committed(engine)
        self._reading = _without_transactions(self._engine)
        self._leave_no_trace = leave_no_trace
        self._check_tables = check_tables
        self._deciding: sa.Engine | None = None
        self._deciding_lock = Lock()
        if locks_whole_database(engine.dialect):
            self._deciding_engine()  # its listeners also make SQLite's commits durable, which every transaction needs

    def read(self, steps: Callable[[sa.Connection], ResultT]) -> ResultT:
        """Run `steps`, which only read. Each statement sees everything committed before it."""

        def once() -> ResultT:
            with self._reading.connect() as connection:
                return steps(connection)

        return self._explained(once)

    def write(self, steps: Callable[[sa.Connection], ResultT]) -> ResultT:
        """Run `steps` and commit durably; again if the transaction conflicts with another one."""

        def once() -> ResultT:
            with self._engine.connect() as connection:
                _exclude_other_writers(connection)
                _raise_durability(connection)
                result = steps(connection)
                _commit(connection)
                return result

        return self._explained(lambda: self._repeated(once))

    def read_durably(self, steps: Callable[[sa.Connection], ResultT]) -> ResultT:
        """Run `steps`, which only read; return once the rows that they read can no longer be lost.

        A visible decision may not be durable: the server has not flushed it yet, or the wait of its COMMIT for a
        standby was cancelled. A later commit, in the transaction that has read it, is durable only if it is too.
        """

        def witnessed(connection: sa.Connection) -> ResultT:
            result = steps(connection)
            self._witness(connection)
            return result

        return self.write(witnessed)

    def decide(
        self, steps: Callable[[sa.Connection, Intact], ResultT], resolve: Callable[[], ResultT | None]
    ) -> ResultT:
        """Run `steps` and commit as `write` does, but guard against steps of the caller that end the transaction.

        `steps` gets a function that raises if a statement has ended the transaction, or has failed and the caller
        swallowed the error. If COMMIT gets no response, `resolve` finds out whether it took effect; it returns the
        result, or None if it did not.
        """
        # Only the driver decides: tasks need neither these modules nor the engine's listeners.
        from dualwrite.recipes.core.buffer import RecordBuffer
        from dualwrite.recipes.sqlalchemy.on_postgres import commit_message
        from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction

        engine = self._deciding_engine()

        def once() -> ResultT:
            with engine.connect() as connection:
                return on(connection)

        def on(connection: sa.Connection) -> ResultT:
            work = SqlAlchemyTransaction(connection, engine, RecordBuffer(), owned=True)
            if work.connection.dialect.name == "postgresql":
                work.decides_by(commit_message(work.connection, DURABLE_COMMIT, "", {}))
            else:
                work.decides()
            try:
                _exclude_other_writers(work.connection)
                result = steps(work.connection, work.assert_intact)
                work.commit()
                return result
            except BaseException as error:
                work.rollback()
                if not work.commit_was_sent or not isinstance(error, Exception):
                    raise
                lost = error
            finally:
                work.close()
            return _resolved(resolve, lost)

        return self._explained(lambda: self._repeated(once))

    def _witness(self, connection: sa.Connection) -> None:
        """Write to the log of the database, so that COMMIT waits for the standby."""
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT {WITNESS_MESSAGE}")
        elif not locks_whole_database(connection.dialect):
            self._leave_no_trace(connection)

    def _deciding_engine(self) -> sa.Engine:
        """Return the engine for decisions, which has listeners of its own.

        They cannot be added to an engine that other threads may be using. SQLite's listeners belong to its connections,
        so there the engine itself is used, and gets them at once.
        """
        from dualwrite.recipes.sqlalchemy.transaction import watch

        with self._deciding_lock:
            if self._deciding is None:
                engine = self._engine
                if not locks_whole_database(engine.dialect):
                    engine = engine.execution_options()
                watch(engine)
                self._deciding = engine
            return self._deciding

    def _repeated(self, once: Callable[[], ResultT]) -> ResultT:
        for _ in range(_CONFLICT_TRIES - 1):
            try:
                return once()
            except DBAPIError as error:
                if locks_whole_database(self._engine.dialect) or not is_conflict(error):
                    raise  # SQLite's only conflict is a lock that was not free in time
        return once()

    def _explained(self, steps: Callable[[], ResultT]) -> ResultT:
        try:
            return steps()
        except (OperationalError, ProgrammingError) as error:
            missing = None if is_unreachable(error) else self._missing()
            if missing is None:
                raise
            raise missing from error

    def _missing(self) -> SinkError | None:
        try:
            self._check_tables()
        except SinkError as missing:
            return missing
        except DBAPIError:
            return None  # the database is unreachable: its own error says more
        return None


def is_unreachable(error: DBAPIError) -> bool:
    """Return whether the connection broke, or could not be made (then SQLAlchemy has no statement)."""
    return error.connection_invalidated or (isinstance(error, OperationalError) and error.statement is None)


def _resolved(resolve: Callable[[], ResultT | None], lost: Exception) -> ResultT:
    try:
        result = resolve()
    except DBAPIError as unreachable:
        raise DecisionUnknownError(
            f"the database did not respond to the COMMIT of a decision ({lost}), and cannot be queried for its outcome "
            f"({unreachable}). It is committed on both sides, or not at all: the next plan finds out"
        ) from lost
    if result is None:
        raise lost
    return result


def _read_committed(engine: sa.Engine) -> sa.Engine:
    """Return the engine with statements that see everything committed before them, not an older snapshot.

    Statements after a lock must see data as recent as the lock. MySQL's default level does that in transactions that
    begin with a locking read, as all transactions of the store do.
    """
    return engine.execution_options(isolation_level="READ COMMITTED") if engine.dialect.name == "postgresql" else engine


def _without_transactions(engine: sa.Engine) -> sa.Engine:
    """Return the engine for reading, without BEGIN and ROLLBACK if that saves two round trips for a statement."""
    is_free = engine.dialect.name == "postgresql" and engine.dialect.driver == "psycopg"
    return engine.execution_options(isolation_level="AUTOCOMMIT") if is_free else engine


def _exclude_other_writers(connection: sa.Connection) -> None:
    """Take SQLite's write lock now. SQLite takes it with the first change, too late for earlier reads."""
    if locks_whole_database(connection.dialect):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def locking(select: sa.Select[Any], connection: sa.Connection, *, shared: bool = False) -> sa.Select[Any]:
    """Return the query with row locks, which keep the rows as they are until the transaction ends."""
    return select if locks_whole_database(connection.dialect) else select.with_for_update(read=shared)
