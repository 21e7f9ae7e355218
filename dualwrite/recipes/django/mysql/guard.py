"""Tracks the transaction of a dual write on the connection of a MySQL driver, mysqlclient or PyMySQL.

The connection makes cursors that report each statement, by its text without the parameters, to the guard, and the guard
refuses calls of connection methods that would end the transaction. The mark of `mysql_row_lock.py` reveals an end that
bypasses both. An error before the first record with which the server rolled the transaction back leaves no mark; the
cursors remember it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NoReturn

from dualwrite.errors import TransactionEndedInsideError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import closed_inside, inside_another, partly_failed
from dualwrite.recipes.sql.transaction_control import MYSQL, Savepoint, checked
from dualwrite.recipes.sqlalchemy.mysql_row_lock import SET_MARK, note_undone, takes_the_mark

_GUARD: Final = "_dualwrite_guard"
_ENDING: Final = ("commit", "rollback", "begin")
_REPLACED: Final = ("autocommit", *_ENDING)


def watch(driver: Any) -> None:
    """Let a new connection make cursors that report to a guard, also to one that starts after them."""
    driver.cursorclass = _watched(driver.cursorclass)


class Guard:
    """Tracks one transaction, from `start` to `stop`."""

    def __init__(self, driver: Any, records: RecordBuffer, failure: BaseException | None) -> None:
        if _GUARD in vars(driver):
            raise inside_another()
        self._driver = driver
        self._records = records
        self._before: dict[str, Any] = {}
        self._refused_ending = failure

    def start(self) -> None:
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
        takes_the_mark_too = takes_the_mark(savepoint, self._records)
        savepoint.follow(self._records)
        if takes_the_mark_too and not self._records.rolled_back_beyond:  # else it is undone, and must not be decided
            cursor = self._driver.cursorclass.unwatched(self._driver)
            cursor.execute(SET_MARK)
            cursor.close()

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
            if self._is_in_many:
                return super().execute(query, args)
            return self._followed(super().execute, query, args)

        def executemany(self, query: Any, args: Any) -> Any:
            self._is_in_many = True
            try:
                return self._followed(super().executemany, query, args)
            finally:
                self._is_in_many = False

        def callproc(self, *arguments: Any, **keywords: Any) -> Any:
            return self.reported(lambda: super(WatchedCursor, self).callproc(*arguments, **keywords))

        def _followed(self, execute: Callable[..., Any], query: Any, args: Any) -> Any:
            guard = _guard_of(self.connection)
            if guard is None:
                return self.reported(lambda: execute(query, args))
            savepoint = guard.before(query)

            def followed() -> Any:
                executed = execute(query, args)
                guard.after(savepoint)
                return executed

            return self.reported(followed, savepoint)

        def reported(self, call: Callable[[], Any], savepoint: Savepoint | None = None) -> Any:
            """Make a call of the driver, and report its error to the guard of the connection."""
            connection = self.connection
            try:
                return call()
            except BaseException as error:
                guard = _guard_of(connection)
                if guard is not None:
                    guard.failed(error, savepoint)
                elif connection is not None and not connection.get_autocommit():
                    note_undone(connection, error)
                raise

    return WatchedCursor


def _guard_of(connection: Any) -> Guard | None:
    guard: Guard | None = getattr(connection, _GUARD, None)
    return guard


class ReportingCursor:
    """Reports errors of results that Django's cursor reads only when it is closed, where Django ignores them.

    SQLAlchemy ignores them too, even one of a signal handler: its own cursors close without this.
    """

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor

    def nextset(self) -> Any:
        return self.cursor.reported(self.cursor.nextset)

    def close(self) -> Any:
        return self.cursor.reported(self.cursor.close)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cursor, name)

    def __iter__(self) -> Any:
        return iter(self.cursor)
