"""Tracks the transaction of a dual write on the connection of a MySQL driver, mysqlclient or PyMySQL.

The connection makes cursors that report each statement, by its text without the parameters, to the guard, and the guard
refuses calls of connection methods that would end the transaction. A mark reveals an end that bypasses both: a
savepoint, which ends with its transaction, however that ends. An error before the first record with which the server
rolled the transaction back leaves no mark; the cursors remember it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NoReturn

from dualwrite.errors import TransactionEndedInsideError
from dualwrite.guarded import pass_on_signal
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import closed_inside, inside_another, is_conflict, partly_failed
from dualwrite.recipes.sql.transaction_control import MYSQL, Savepoint, Step, checked
from dualwrite.recipes.sqlalchemy.mysql_row_lock import LOCK_WAIT_TIMEOUT

MARK: Final = "dualwrite_block"
"""The savepoint that exists if, and only if, the tracked transaction is still running."""

_GUARD: Final = "_dualwrite_guard"
_ENDING: Final = ("commit", "rollback", "begin")
_REPLACED: Final = ("autocommit", *_ENDING)
_CONFLICT: Final = "_dualwrite_conflict"
"""The attribute of a connection that holds the error with which the database rolled its transaction back."""


def watch(driver: Any) -> None:
    """Let a new connection make cursors that report to a guard, also to one that starts after them."""
    driver.cursorclass = _watched(driver.cursorclass)


def forget_conflict(driver: Any) -> None:
    """Forget that the database rolled a transaction back, because the application has ended it."""
    vars(driver).pop(_CONFLICT, None)


class Guard:
    """Tracks one transaction, from `start` to `stop`."""

    def __init__(self, driver: Any, records: RecordBuffer) -> None:
        if _GUARD in vars(driver):
            raise inside_another()
        self._driver = driver
        self._records = records
        self._before: dict[str, Any] = {}
        self._refused_ending: BaseException | None = vars(driver).get(_CONFLICT)

    def start(self) -> None:
        """Mark the transaction, and track all statements and calls on the connection."""
        self._mark()
        own = vars(self._driver)
        self._before = {name: own[name] for name in _REPLACED if name in own}
        # in one step, which no signal handler can split: `stop` restores all of it
        own.update({_GUARD: self, "autocommit": self._refuse_autocommit, **dict.fromkeys(_ENDING, self._refuse_end)})

    def stop(self) -> None:
        """Restore the connection; harmless when repeated."""
        own = vars(self._driver)
        if own.get(_GUARD) is self:
            for name in _REPLACED:
                own.pop(name, None)
            own.update(self._before)
            own.pop(_GUARD, None)  # last: until then, this can be repeated

    def _mark(self) -> None:
        cursor = self._driver.cursorclass.unwatched(self._driver)
        cursor.execute(f"SAVEPOINT {MARK}")
        cursor.close()

    def assert_intact(self) -> None:
        """Raise a RecipeError if the transaction cannot be the decision, as far as is known without a query."""
        failure = self._refused_ending or self._records.refused
        if failure is not None:
            raise partly_failed(failure, "an inner transaction.atomic()")
        if not self._driver.open:
            raise closed_inside()

    # ---- statements -------------------------------------------------------------------------------------------------

    def before(self, query: Any) -> Savepoint | None:
        text = query if isinstance(query, str) else bytes(query).decode(errors="replace")
        try:
            return checked(text, MYSQL)
        except TransactionEndedInsideError as error:
            self._refused_ending = error
            raise

    def failed(self, error: BaseException, savepoint: Savepoint | None) -> None:
        """Remember that a statement failed or was interrupted.

        MySQL goes on after a failed statement, and may have undone earlier ones too (a deadlock rolls all of them
        back). Only rolling back to an earlier savepoint leaves a known state.
        """
        if savepoint is not None or not isinstance(error, Exception):
            self._refused_ending = error
        else:
            self._records.refuse(error)

    def after(self, savepoint: Savepoint | None) -> None:
        if savepoint is None:
            return
        # RELEASE also ends all later savepoints. If the released one is older than the mark, it proves the same as the
        # mark.
        takes_the_mark = savepoint.step is Step.RELEASE and not self._records.knows_savepoint(savepoint.name)
        savepoint.follow(self._records)
        if takes_the_mark and not self._records.rolled_back_beyond:  # else the dual write is undone: leave it unmarked
            self._mark()

    def _refuse_end(self, *arguments: Any) -> NoReturn:
        self._refused_ending = TransactionEndedInsideError(
            "a call on the driver's connection would have ended the transaction of a dual write; it was refused, and "
            "neither database nor Kafka is changed: let transaction.atomic() end it"
        )
        raise self._refused_ending

    def _refuse_autocommit(self, *arguments: Any) -> NoReturn:
        raise self._driver.ProgrammingError(
            "autocommit cannot be changed inside a dual write, because that would commit its transaction; nothing was "
            "done"
        )


@cache
def _watched(cursor_class: Any) -> Any:
    """Derive a cursor class that reports its statements to its connection's guard, if there is one."""

    class WatchedCursor(cursor_class):  # type: ignore[misc]
        unwatched = cursor_class
        """The class of cursors whose statements are not tracked."""
        _is_in_many = False
        """Whether the driver is executing `executemany`, whose text was checked, one statement after the other."""

        def execute(self, query: Any, args: Any = None) -> Any:
            guard = None if self._is_in_many else _guard_of(self)
            if guard is None:
                try:
                    return super().execute(query, args)
                except Exception as error:
                    _keep_conflict(self, error)
                    raise
            savepoint = guard.before(query)
            try:
                executed = super().execute(query, args)
            except BaseException as error:
                guard.failed(error, savepoint)
                raise
            guard.after(savepoint)
            return executed

        def executemany(self, query: Any, args: Any) -> Any:
            guard = _guard_of(self)
            if guard is None:
                try:
                    return super().executemany(query, args)
                except Exception as error:
                    _keep_conflict(self, error)
                    raise
            savepoint = guard.before(query)
            self._is_in_many = True
            try:
                executed = super().executemany(query, args)
            except BaseException as error:
                guard.failed(error, savepoint)
                raise
            finally:
                self._is_in_many = False
            guard.after(savepoint)
            return executed

        def callproc(self, *arguments: Any, **keywords: Any) -> Any:
            guard = _guard_of(self)
            try:
                return super().callproc(*arguments, **keywords)
            except BaseException as error:
                if guard is not None:
                    guard.failed(error, None)
                elif isinstance(error, Exception):
                    _keep_conflict(self, error)
                raise

    return WatchedCursor


def _keep_conflict(cursor: Any, error: Exception) -> None:
    """Remember an error with which the database rolls back a whole transaction; later statements are in a new one."""
    if not cursor.connection.get_autocommit() and (is_conflict(error) or _is_timeout_that_rolls_back(cursor, error)):
        setattr(cursor.connection, _CONFLICT, error)


def _is_timeout_that_rolls_back(cursor: Any, error: Exception) -> bool:
    """Return whether the error is a lock timeout, and the server's setting makes it undo the whole transaction.

    The server is queried, because error responses do not mention the transaction, and mysqlclient shows no status
    flags.
    """
    if not error.args or error.args[0] != LOCK_WAIT_TIMEOUT:
        return False
    try:
        asking = cursor.unwatched(cursor.connection)
        asking.execute("SELECT @@innodb_rollback_on_timeout AS is_set")
        (row,) = asking.fetchall()
    except Exception as failure:
        pass_on_signal(failure)
        return True  # unknown, so assume the worse
    return bool(row["is_set"] if isinstance(row, dict) else row[0])


def _guard_of(cursor: Any) -> Guard | None:
    guard: Guard | None = getattr(cursor.connection, _GUARD, None)
    return guard
