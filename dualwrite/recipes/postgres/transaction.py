"""The database transaction of a dual write on PostgreSQL, for any driver; written once for threads and asyncio."""

from __future__ import annotations

import importlib.resources
import logging
import os
from abc import abstractmethod
from functools import cache
from typing import Any, ClassVar, Final, TypeVar

from dualwrite.errors import IllegalStateError, TransactionDoomedError, TransactionEndedInsideError
from dualwrite.recipes.core.database_errors import warn_of_drop
from dualwrite.recipes.core.store import ended_past, missing_table, wait_given_up
from dualwrite.recipes.postgres.connections import Connections, abandon
from dualwrite.recipes.postgres.statement_watch import StatementWatch
from dualwrite.recipes.sql.identity_table import IDENTITY_TABLE
from dualwrite.recipes.sql.lease_statements import LEASE_TABLE
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE
from dualwrite.recipes.sql.pinned_tables import STATE_TABLE, Pin, PinnedTables
from dualwrite.recipes.sql.postgres import LOCATION, MAKE_DURABLE, WITNESS, BeforeCommit, new_mark
from dualwrite.recipes.sql.postgres import MARK as _MARK
from dualwrite.recipes.sql.postgres_steps import HAS_TABLE, CommitMessage, PostgresSteps, Refusals

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_FILES: Final = {
    STATE_TABLE: "schema.sql",
    IDENTITY_TABLE: "schema.sql",
    LEASE_TABLE: "pool_schema.sql",
    OUTBOX_TABLE: "outbox_schema.sql",
}
"""The files that create our tables."""


class PostgresTransaction(PostgresSteps):
    """`DatabaseTransaction` on a connection that is returned to `of`, or left to the caller if that is None."""

    _message_class: ClassVar[type[CommitMessage]]
    """The message that ends in COMMIT; its method `send` may return an awaitable."""
    _raw: Any
    """The driver's own connection."""

    def __init__(
        self, connection: Any, watch: StatementWatch, of: Connections | None, pin: Pin, must_be_in: Any = None
    ) -> None:
        self.pin = pin
        self._must_be_in = must_be_in
        self.mark = new_mark()
        self.connection = connection
        self._watch = watch
        self._of = of
        # a connection that only writers use goes on refusing statements until the next block begins
        self._unwatch: Final = watch.retire if of is not None and of.are_ours else watch.stop
        self._process_id = os.getpid()
        self._deciding: Any = None  # of `_message_class`
        self._is_closed = False
        """Whether the connection was given back, and may belong to another block."""
        self.commit_was_sent = False
        """Whether COMMIT may have reached the database; while it has not, a rollback is certain."""
        self.was_ended_past = False
        """Whether the transaction was ended by other means, maybe by COMMIT, before it was rolled back."""
        self._is_over = False

    # -- implemented by each driver; methods that send a message begin with `_assert_ours` -------------------------

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether the connection is open and in no transaction, as far as the driver knows."""

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether the connection is known to be closed."""

    @property
    @abstractmethod
    def host(self) -> str:
        """The host of the connection."""

    @property
    @abstractmethod
    def _cannot_roll_back(self) -> bool:
        """Whether the connection is lost or busy, so that only dropping it rolls back."""

    @abstractmethod
    def _begin_statement(self) -> str:
        """Return the statement that begins a transaction with the settings of the connection."""

    @abstractmethod
    async def script(self, sql: str) -> object:
        """Execute statements without parameters, in one round trip. It bypasses the watch."""

    @abstractmethod
    async def _send_rollback(self) -> None:
        """Send ROLLBACK."""

    @abstractmethod
    def _drop(self) -> None:
        """Drop the connection, so that the database rolls back."""

    # -- the transaction -------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin the transaction, or join an open one; works in autocommit mode too."""
        await self.script(self._beginning())
        self._watch.start()

    async def begin_and_locate(self) -> str:
        """Begin as `begin` does, and query `location`, in the same round trip if the driver can."""
        await self.begin()
        return await self.location()

    def _beginning(self) -> str:
        mark = f"SET LOCAL {_MARK} = '{self.mark}'"
        return f"{self._begin_statement()}; {mark}" if self.is_idle else mark

    async def location(self) -> str:
        """Query in which database of which server the transaction runs."""
        return str(await self._scalar(f"SELECT {LOCATION}"))

    def doom(self, error: BaseException) -> None:
        self._watch.doom(error)

    def assert_intact(self) -> None:
        self._watch.assert_intact()

    async def flush(self) -> None:
        self._watch.close()  # first: no statement may begin between the checks and the decision
        self._watch.assert_intact()  # a connection does not hold statements back
        self._watch.assert_savepoints_known()

    def _assert_begun(self) -> None:
        if self.is_idle:  # in autocommit mode a lock outside a transaction ends with its statement
            raise self._ended_past()

    def _commit_behind(
        self, before: BeforeCommit | None, token: str, refusals: Refusals, *, is_added: bool = False
    ) -> None:
        self._deciding = self._message_class(self._raw, before, token, refusals)

    async def read_to_prove_durable(self, transactional_id: str) -> str | None:
        """Read the row without a lock; once this transaction is committed, the content is durable."""
        self._transactional_id = transactional_id
        self._commit_behind(MAKE_DURABLE, self.mark, {})
        return await self._scalar(WITNESS, {"id": transactional_id})

    async def commit(self) -> None:
        if os.getpid() != self._process_id:
            self._assert_ours()
        self._watch.assert_nothing_refused()
        message: Any = self._deciding or self._message_class(self._raw, None, self.mark, {})
        self.commit_was_sent = True
        try:
            sent = message.send()
            if sent is not None:
                await sent
        except BaseException as error:
            if message.was_refused:
                self.commit_was_sent = False  # the server did not reach the COMMIT
                self._is_over |= isinstance(error, TransactionDoomedError)  # or it responded with ROLLBACK
            raise
        if message.was_given_up and self._deciding is not None:
            raise wait_given_up(self._transactional_id)

    async def rollback(self) -> None:
        if self._is_closed:
            return
        self._end()
        if self._belongs_to_the_parent:
            return
        if self._cannot_roll_back:
            self._drop()
            return
        try:
            await self._send_rollback()
        except self.errors as error:
            warn_of_drop(_log, self._transactional_id, "rolling back the database", error)
            self._drop()
        except BaseException:
            self._drop()
            raise

    async def close(self) -> None:
        if self._is_closed:
            return
        self._unwatch()
        if self._belongs_to_the_parent:
            abandon(self.connection)
            return
        if not self.is_idle:
            self._drop()  # it was not rolled back, or not completely
        if self._of is not None:
            self._is_closed = True  # first: released twice, it would have two users
            await self._of.release(self.connection)

    def close_at_once(self) -> bool:
        if self._is_closed:
            return True
        if os.getpid() != self._process_id or not self.is_idle:
            return False
        self._unwatch()
        if self._of is None:
            return True
        self._is_closed = True  # first: if an interruption comes here, garbage collection closes the connection
        self._is_closed = is_kept = self._of.keep(self.connection)
        return is_kept

    def let_go(self) -> None:
        """Give the connection back to the caller, in its current state."""
        self._end()
        self._watch.stop()

    def _ended_past(self) -> TransactionEndedInsideError:
        self.was_ended_past = True
        return ended_past(_ANOTHER_TRANSACTION)

    def _end(self) -> None:
        """Refuse statements, and note whether the transaction was ended before that. Harmless when repeated."""
        self._watch.close()
        if not self._is_over:
            self._is_over = True
            self.was_ended_past |= self.is_idle and not self.commit_was_sent

    @property
    def _belongs_to_the_parent(self) -> bool:
        """Whether this is a forked child, which shares the socket: sending on it would end the parent's transaction."""
        return os.getpid() != self._process_id

    def _assert_ours(self) -> None:
        if os.getpid() != self._process_id:
            raise IllegalStateError(
                "this dual write belongs to the parent process; nothing was sent from the child: end it in the parent"
            )

    # -- statements of our own, which the watch does not see ---------------------------------------------------------

    async def need(self, table: str, pinned: PinnedTables | None, *, create: bool) -> None:
        """Create a table if it is missing. Raises StateRowError unless it may be created here."""
        file = _FILES[table]
        name, text = table, _schema(file)
        if pinned is not None:
            name, text = pinned.sql(name), pinned.sql(text)
        if await self._scalar(HAS_TABLE, {"name": name}) is not None:
            return
        if not create:
            raise missing_table(table, otherwise=f"dualwrite/recipes/sql/{file}")
        await self.script(text)


@cache
def _schema(file: str) -> str:
    return importlib.resources.files("dualwrite.recipes.sql").joinpath(file).read_text()


_ANOTHER_TRANSACTION = (
    "the transaction in which this block began has ended, or was rolled back to an earlier savepoint, bypassing the "
    "connection's own methods; Kafka was not changed, and the database keeps only changes that a COMMIT made "
    "permanent: let the dual write end the transaction"
)
