"""Transactions of the commit store: locking, durability, retries, and a COMMIT that got no response."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from dualwrite.recipes.sqlalchemy.deciding import (
    commit_durably,
    deciding_engine,
    decision_on,
    is_conflict,
    locks_whole_database,
    raise_durability,
    witness,
)
from spark_sink.errors import DecisionUnknownError, SinkError

ResultT = TypeVar("ResultT")

_CONFLICT_TRIES: Final = 5


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
                raise_durability(connection)
                result = steps(connection)
                commit_durably(connection)
                return result

        return self._explained(lambda: self._repeated(once))

    def read_durably(self, steps: Callable[[sa.Connection], ResultT]) -> ResultT:
        """Run `steps`, which only read; return once the rows that they read can no longer be lost.

        A visible decision may not be durable: the server has not flushed it yet, or the wait of its COMMIT for a
        standby was cancelled. A later commit, in the transaction that has read it, is durable only if it is too.
        """

        def witnessed(connection: sa.Connection) -> ResultT:
            result = steps(connection)
            self.make_durable(connection)
            return result

        return self.write(witnessed)

    def make_durable(self, connection: sa.Connection) -> None:
        """Let the COMMIT of this transaction, which has only read, wait until the rows that it read are durable."""
        if not witness(connection):
            self._leave_no_trace(connection)

    def decide(
        self, steps: Callable[[sa.Connection, Intact], ResultT], resolve: Callable[[], ResultT | None]
    ) -> ResultT:
        """Run `steps` and commit as `write` does, but guard against steps of the caller that end the transaction.

        `steps` gets a function that raises if a statement has ended the transaction, or has failed and the caller
        swallowed the error. If COMMIT gets no response, `resolve` finds out whether it took effect; it returns the
        result, or None if it did not.
        """
        engine = self._deciding_engine()

        def once() -> ResultT:
            with engine.connect() as connection:
                return on(connection)

        def on(connection: sa.Connection) -> ResultT:
            work = decision_on(connection, engine)
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

    def _deciding_engine(self) -> sa.Engine:
        """Return the engine for decisions: only the driver makes them, so tasks do not need it."""
        with self._deciding_lock:
            if self._deciding is None:
                self._deciding = deciding_engine(self._engine)
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
