"""Follows the transaction of a dual write on the connection of a MySQL driver, mysqlclient or PyMySQL.

While it follows, the connection makes cursors that report each statement, by its text without the parameters, and its
own methods that would end the transaction are refused. What goes past both is found by a mark: a savepoint, which ends
with its transaction, however that ends.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NoReturn

from dualwrite.errors import IllegalStateError, TransactionDoomedError, TransactionEndedInsideError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.sql.transaction_control import MYSQL, Effect, TransactionControl, control_of

MARK: Final = "dualwrite_block"
"""The savepoint that is there if, and only if, the transaction is still the one that was followed."""

_GUARD: Final = "_dualwrite_guard"
_ENDING: Final = ("commit", "rollback", "begin")
_REPLACED: Final = ("cursorclass", "autocommit", *_ENDING)


class Guard:
    """Follows one transaction, from `start` to `stop`."""

    def __init__(self, driver: Any, records: RecordBuffer) -> None:
        if _GUARD in vars(driver):
            raise IllegalStateError(_INSIDE_ANOTHER)
        self._driver = driver
        self._records = records
        self._cursor_class = driver.cursorclass
        self._before: dict[str, Any] = {}
        self._refused_ending: BaseException | None = None

    def start(self) -> None:
        """Mark the transaction, and follow what is done on the connection."""
        self._mark()
        own = vars(self._driver)
        self._before = {name: own[name] for name in _REPLACED if name in own}
        own["cursorclass"] = _watched(self._cursor_class)
        own["autocommit"] = self._refuse_autocommit
        own.update(dict.fromkeys(_ENDING, self._refuse_end))
        own[_GUARD] = self

    def stop(self) -> None:
        """Restore the connection; harmless when repeated."""
        own = vars(self._driver)
        if own.get(_GUARD) is self:
            for name in (*_REPLACED, _GUARD):
                del own[name]
            own.update(self._before)

    def _mark(self) -> None:
        cursor = self._cursor_class(self._driver)  # whose statements are not followed
        cursor.execute(f"SAVEPOINT {MARK}")
        cursor.close()

    def assert_intact(self) -> None:
        """Raise a RecipeError if the transaction cannot be the decision, as far as is known without asking."""
        failure = self._refused_ending or self._records.refused
        if failure is not None:
            raise TransactionDoomedError(
                f"a part of this dual write failed ({type(failure).__name__}) and its error was swallowed; "
                "neither database nor Kafka was changed: let the error end the block, or run a statement that may "
                "fail in an inner transaction.atomic()"
            ) from failure
        if not self._driver.open:
            raise TransactionEndedInsideError(_CLOSED)

    # ---- statements -------------------------------------------------------------------------------------------------

    def before(self, query: Any) -> TransactionControl:
        """Check a statement that is about to be sent. Return what it does to the transaction, for `after`."""
        text = query if isinstance(query, str) else bytes(query).decode(errors="replace")
        control = control_of(text, MYSQL)
        try:
            control.assert_may_be_sent(text)
        except (TransactionEndedInsideError, IllegalStateError) as error:
            self._refused_ending = error
            raise
        return control

    def failed(self, error: BaseException, control: TransactionControl) -> None:
        """Remember that a statement failed or was interrupted.

        MySQL goes on after a failed statement, with or without what was done before it (a deadlock rolls all of it
        back). Only rolling back to an earlier savepoint makes sure of that.
        """
        if control.steps or not isinstance(error, Exception):
            self._refused_ending = error
        else:
            self._records.refuse(error)

    def after(self, control: TransactionControl) -> None:
        """Follow a statement that was executed."""
        if not control.steps:
            return
        # RELEASE ends all later savepoints too. That one from before the mark was there proves what the mark does.
        takes_the_mark = any(
            effect is Effect.RELEASE and not self._records.knows_savepoint(name) for effect, name in control.steps
        )
        control.follow(self._records)
        if takes_the_mark and not self._records.rolled_back_beyond:  # that would mark what the dual write was not in
            self._mark()

    def _refuse_end(self, *arguments: Any) -> NoReturn:
        self._refused_ending = TransactionEndedInsideError(
            "the transaction of a dual write was to be ended on the driver's connection; the call was refused, and "
            "neither database nor Kafka is changed: let transaction.atomic() end it"
        )
        raise self._refused_ending

    def _refuse_autocommit(self, *arguments: Any) -> NoReturn:
        raise self._driver.ProgrammingError(
            "autocommit cannot be changed in the transaction of a dual write, which it would commit; nothing was done"
        )


@cache
def _watched(cursor_class: Any) -> Any:
    """Derive a cursor class that reports its statements to its connection's guard, if there is one."""

    class WatchedCursor(cursor_class):  # type: ignore[misc]
        _is_in_many = False
        """Whether the driver sends the statements of `executemany`, whose text was checked, with their parameters."""

        def execute(self, query: Any, args: Any = None) -> Any:
            guard = None if self._is_in_many else _guard_of(self)
            if guard is None:
                return super().execute(query, args)
            control = guard.before(query)
            try:
                executed = super().execute(query, args)
            except BaseException as error:
                guard.failed(error, control)
                raise
            guard.after(control)
            return executed

        def executemany(self, query: Any, args: Any) -> Any:
            guard = _guard_of(self)
            if guard is None:
                return super().executemany(query, args)
            control = guard.before(query)
            self._is_in_many = True
            try:
                executed = super().executemany(query, args)
            except BaseException as error:
                guard.failed(error, control)
                raise
            finally:
                self._is_in_many = False
            guard.after(control)
            return executed

        def callproc(self, *arguments: Any, **keywords: Any) -> Any:
            guard = _guard_of(self)
            try:
                return super().callproc(*arguments, **keywords)
            except BaseException as error:
                if guard is not None:
                    guard.failed(error, control_of("CALL", MYSQL))
                raise

    return WatchedCursor


def _guard_of(cursor: Any) -> Guard | None:
    guard: Guard | None = getattr(cursor.connection, _GUARD, None)
    return guard


_INSIDE_ANOTHER: Final = (
    "this connection already carries a dual write, and its transaction cannot decide a second one; nothing was "
    "written: send all records in one block"
)
_CLOSED: Final = (
    "the connection of the dual write was closed or lost inside the block, and its transaction with it; "
    "neither database nor Kafka was changed"
)
