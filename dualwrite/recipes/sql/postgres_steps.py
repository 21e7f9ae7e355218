"""The steps of a dual write in a transaction of PostgreSQL, by whichever way its statements reach the server.

Each driver, and SQLAlchemy, says how a statement is executed and how a message that ends in COMMIT is sent.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

from dualwrite.errors import RowLockTimeoutError, TransactionDoomedError, TransactionEndedInsideError
from dualwrite.guarded import pass_on_signal
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.database_errors import driver_error, sqlstate_of
from dualwrite.recipes.core.leases import is_outbox
from dualwrite.recipes.core.store import (
    NO_STORED_BLOCKS,
    StoredBlock,
    StoredBlocks,
    manifest_in,
    newer_than_snapshot,
    not_as_locked,
    state_in,
    stayed_locked,
)
from dualwrite.recipes.sql import postgres
from dualwrite.recipes.sql.diversion_statements import DIALECTS, DiversionRow
from dualwrite.recipes.sql.outbox_statements import (
    ADD,
    ADD_AGAIN,
    NOT_MARKED,
    WAIT_BRIEFLY,
    PostgresOutbox,
    if_added,
    place_of,
)
from dualwrite.recipes.sql.pinned_tables import OnTables, table_replaced
from dualwrite.recipes.sql.postgres import BeforeCommit, new_mark

ResultT = TypeVar("ResultT")

HAS_TABLE: Final = "SELECT CAST(to_regclass(:name) AS text)"


class PostgresSteps(OnTables):
    """The statements of a dual write in one transaction, in the order in which `DatabaseTransaction` has them."""

    dialect = "postgresql"
    errors: ClassVar[tuple[type[Exception], ...]]
    """The errors of the driver."""
    driver_name: ClassVar[str]
    """The name of the driver in error messages."""

    mark: str
    """The mark that was set with the transaction's BEGIN, empty if none was."""

    _must_be_in: Any = None
    """The `PostgresDatabase` in which the transaction must run, as its `location` says; None: any."""
    _transactional_id: str | None = None

    # -- implemented by each driver, with `rows` and `changed`: statements of our own, which no watch sees ------------

    @abstractmethod
    def _assert_begun(self) -> None:
        """Raise if the connection is in no transaction, so that a lock ends with its statement."""

    @abstractmethod
    def _ended_past(self) -> TransactionEndedInsideError:
        """Note that the transaction was ended unseen by the dual write, and return the error."""

    @abstractmethod
    def _commit_behind(
        self, before: BeforeCommit | None, token: str, refusals: Refusals, *, is_added: bool = False
    ) -> None:
        """Let COMMIT be sent behind a statement, in one message. `is_added`: the records are in the outbox."""

    @property
    def has_hooks(self) -> bool:
        """Whether the application may execute statements between the last one of ours and COMMIT."""
        return False

    async def _scalar(self, sql: str, values: Mapping[str, str | bytes] | None = None) -> str | None:
        """Return the first value of a statement, a text; None if it is NULL or there is no row."""
        found = await self.rows(sql, values or {})
        value: str | None = found[0][0] if found else None
        return value

    def _note_id(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id

    # -- the lock -----------------------------------------------------------------------------------------------------

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        self._note_id(transactional_id)
        place, text = self._must_be_in, None
        try:
            sql = postgres.SELECT_FREE if place is None else postgres.SELECT_FREE_AND_LOCATION
            locked = await self.first_row(sql, {"id": transactional_id})
            if place is not None and (locked is None or locked[1] != place.location):
                await place.assert_holds(self)
            if locked is not None:
                text = locked[0]
            else:  # the row is not free
                late = stayed_locked(transactional_id, timeout_ms)
                select = postgres.SELECT_LOCKED, {"id": transactional_id}
                text = await self.within(timeout_ms, late, lambda: self._scalar(*select))
        except self.errors as error:
            if sqlstate_of(driver_error(error)) == postgres.UNDEFINED_TABLE:
                raise table_replaced(self.pin.located) from error
            raise
        self._assert_begun()
        if text is None:
            await self._assert_no_row(transactional_id)
        return state_in(transactional_id, text)

    async def within(
        self, timeout_ms: int | None, late: RowLockTimeoutError, wait: Callable[[], Awaitable[ResultT]]
    ) -> ResultT:
        """Execute statements with a limit for their locks, and restore the transaction's own. Raises `late`."""
        try:
            if timeout_ms is None:
                return await wait()
            before = await self._scalar(postgres.LOCK_TIMEOUT) or "0"
            await self._scalar(postgres.SET_LOCK_TIMEOUT, {"value": f"{max(timeout_ms, 1)}ms"})  # 0: without a limit
            result = await wait()
            await self._scalar(postgres.SET_LOCK_TIMEOUT, {"value": before})
            return result
        except self.errors as error:
            if sqlstate_of(driver_error(error)) == postgres.LOCK_NOT_AVAILABLE:
                raise late from error
            raise

    async def _assert_no_row(self, transactional_id: str) -> None:
        try:
            await self.query(postgres.assert_no_row(self.pin.located, transactional_id))
        except self.errors as error:
            if sqlstate_of(driver_error(error)) == postgres.SERIALIZATION_FAILURE:
                raise newer_than_snapshot(transactional_id) from error
            raise

    async def read(self, transactional_id: str) -> PreparedTxnState:
        text = await self._scalar(postgres.SELECT_LOCKED, {"id": transactional_id})
        self._assert_begun()
        return state_in(transactional_id, text)

    async def read_manifest(self, transactional_id: str) -> str:
        text = await self._scalar(postgres.SELECT_MANIFEST, {"id": transactional_id})
        self._assert_begun()
        return manifest_in(transactional_id, text)

    # -- the message of COMMIT ----------------------------------------------------------------------------------------

    async def write(
        self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState, manifest: str
    ) -> None:
        mark = self.mark
        token = mark or new_mark()
        values = {
            "id": transactional_id,
            "previous": str(previous),
            "new": str(new),
            "manifest": manifest or None,
            "mark": mark,
            "token": token,
        }
        before = BeforeCommit(self.pin.sql(postgres.WRITE), values)
        self._commit_behind(before, token, self.refusals(transactional_id, previous))

    def refusals(self, transactional_id: str, previous: PreparedTxnState) -> Refusals:
        def not_held() -> Exception:
            if not self.mark:
                return self._ended_past()  # it may be another transaction
            return not_as_locked(transactional_id, previous, past=self.driver_name)

        return {postgres.NOT_AS_LOCKED: not_held, postgres.ANOTHER_TRANSACTION: self._ended_past}

    async def add_to_outbox(self, transactional_id: str, content: bytes) -> StoredBlock:
        self._note_id(transactional_id)
        mark = self.mark
        values: dict[str, str | bytes] = {"id": transactional_id, "content": content, "mark": mark}
        try:
            row = await self.first_row(ADD, values)
        except self.errors as error:
            if sqlstate_of(driver_error(error)) == NOT_MARKED:
                raise self._ended_past() from error
            raise
        assert row is not None, "the statement returns a row"
        place = place_of(str(row[0]), content)
        if self._must_be_in is not None and place.location != self._must_be_in.location:
            await self._must_be_in.assert_holds(self)
        before, token = None if place.is_durable else postgres.MAKE_DURABLE, mark or new_mark()
        if self.has_hooks:  # which may undo it
            before = if_added(self.pin.located, transactional_id, place.added, mark=mark, token=token)
        self._commit_behind(before, token, {postgres.ANOTHER_TRANSACTION: self._ended_past}, is_added=True)
        return place.added

    # -- the other tables ---------------------------------------------------------------------------------------------

    def stored_blocks(self, transactional_id: str) -> StoredBlocks:
        return self.outbox if is_outbox(transactional_id) else NO_STORED_BLOCKS

    def diversion(self, name: str, timeout_ms: int | None = None) -> DiversionRow:
        return DiversionRow(self, DIALECTS["postgresql"], name, timeout_ms)

    @property
    def outbox(self) -> PostgresOutbox:
        return PostgresOutbox(self, self._has_ended)

    async def _has_ended(self, transactional_id: str, seq: int) -> bool:
        """Return whether no transaction in progress has added a block. If one has, this transaction has failed."""
        try:
            await self.rows(WAIT_BRIEFLY, {})
            await self.changed(ADD_AGAIN, {"id": transactional_id, "seq": seq})
        except self.errors as error:
            if sqlstate_of(driver_error(error)) == postgres.LOCK_NOT_AVAILABLE:
                return False
            raise
        return True

    async def has_table(self, name: str) -> bool:
        return await self._scalar(HAS_TABLE, {"name": self.pin.sql(name)}) is not None


# ---- a message that ends in COMMIT, and the proof in its response ---------------------------------------------------

Refusals = Mapping[str, Callable[[], Exception]]
"""Errors, by the texts that the server quotes, followed by a token, if it did not reach COMMIT."""

IN_FAILED_TRANSACTION: Final = "25P02"
"""The SQLSTATE of a statement that was refused because an earlier one has failed."""

_INVALID_TEXT: Final = "22P02"
"""The SQLSTATE of a failed cast, such as that of `postgres.WRITE`."""


class CommitMessage:
    """A message that ends in COMMIT, and its outcome. Inside a `with` it takes the place of the driver's own COMMIT.

    `refusals` are errors, by the texts that the server quotes, followed by `token`, if it did not reach COMMIT.
    """

    def __init__(self, connection: Any, before: BeforeCommit | None, token: str, refusals: Refusals) -> None:
        self.connection = connection
        self._before = before
        self._token = token
        self._refusals = refusals
        self.was_committed = False
        self.was_sent = False
        """Whether the server may have got it, so that an error of a second attempt proves nothing about COMMIT."""
        self.was_refused = False
        """Whether the server is known not to have reached COMMIT."""
        self.was_given_up = False
        """Whether the server gave up waiting for a synchronous standby but still reported success."""

    @property
    def _script(self) -> str:
        return "COMMIT" if self._before is None else self._before.script

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Let the driver's own COMMIT be sent again, as the end of the `with` does; harmless when repeated."""

    def assert_not_sent(self, error: Callable[[str], Exception]) -> None:
        """Raise `error` if the message was sent before, as by code that repeats a COMMIT without a response."""
        if self.was_sent:
            raise error("COMMIT was sent before, and got no response: its outcome is not known, and it is not repeated")

    def raise_refusal(self, error: BaseException) -> None:
        """Note whether a failure proves that COMMIT was not reached. Raises the error for a refusal of the message."""
        if isinstance(error, TransactionDoomedError):
            self.was_refused = True
            return
        refusal = refusal_in(error, self._token, self._refusals)
        if refusal is not None:
            self.was_refused = True
            raise refusal from error


def refusal_in(error: BaseException, token: str, refusals: Refusals) -> Exception | None:
    """Return the error for a failure that proves that COMMIT was not reached; None if it may have been."""
    sqlstate = sqlstate_of(error)
    if sqlstate == IN_FAILED_TRANSACTION:
        return TransactionDoomedError(
            "the transaction had failed before COMMIT was sent; neither database nor Kafka was changed: let the error "
            "of the failed statement end the block"
        )
    if sqlstate != _INVALID_TEXT:
        return None
    text = str(error)
    return next((refused() for why, refused in refusals.items() if f"{why} {token}" in text), None)


def assert_committed(status: str | None) -> None:
    """Check the response to COMMIT. Raises TransactionDoomedError if it says that the server rolled back."""
    if status != "COMMIT":
        raise TransactionDoomedError(
            f"PostgreSQL responded to COMMIT with {status or 'nothing'}, because the transaction had failed before; "
            "neither database nor Kafka was changed: let the error of the failed statement end the block"
        )


class MessageBeforeCommit(CommitMessage):
    """The message for any other driver: it is sent right before the driver's COMMIT, which then has nothing left to do.

    psycopg2 takes the transaction for open until then. Such drivers do not report the server's warnings.
    """

    def send(self, dbapi_connection: Any) -> None:
        """Send the message; do nothing when repeated."""
        if self.was_committed:
            return
        self.assert_not_sent(ConnectionError)
        cursor = dbapi_connection.cursor()
        self.was_sent = True
        try:
            cursor.execute(self._script)
            assert_committed(getattr(cursor, "statusmessage", "COMMIT"))
        except Exception as error:
            pass_on_signal(error)
            self.raise_refusal(error)
            raise
        finally:
            cursor.close()
        self.was_committed = True
