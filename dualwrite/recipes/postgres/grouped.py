"""The database transaction of a group of blocks: one connection, and a savepoint before each further block.

With psycopg a savepoint is sent when its block begins, and its response is read with that of the block's first
statement: it costs no round trip. With other drivers it costs one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from dualwrite.errors import IllegalStateError, TransactionEndedInsideError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite, DualWriteProgress
from dualwrite.recipes.core.waiting import Uninterrupted
from dualwrite.recipes.postgres.transaction import PostgresTransaction
from dualwrite.recipes.sql.socket_timeout import SocketCut

TxT = TypeVar("TxT", bound=DualWrite)


class PostgresGroup(Generic[TxT]):
    """`GroupTransaction` on PostgreSQL."""

    def __init__(
        self,
        transaction: PostgresTransaction,
        records: RecordBuffer,
        handle: Callable[[Any, RecordBuffer], TxT],
        uninterrupted: Uninterrupted,
    ) -> None:
        self.progress: Final = DualWriteProgress(transaction, records, uninterrupted)
        self._transaction = transaction
        self._handle = handle
        self._savepoints = 0
        self._socket: SocketCut | None = None

    @property
    def takes_more(self) -> bool:
        return not self._transaction.has_changed_settings

    def new_block(self, records: RecordBuffer) -> TxT:
        return self._handle(self._transaction, records)

    async def begin_block(self, tx: TxT, *, first: bool) -> None:
        if not first:
            if self._socket is None:
                self._socket = SocketCut(self._transaction.connection)
            self._savepoints += 1
            if not self._transaction.savepoint_ahead(self._savepoint):
                await self._transaction.savepoint(self._savepoint)
        self._transaction.follow(tx.progress.records)

    @property
    def _savepoint(self) -> str:
        """Each one has its own name: if it was not set, rolling back to it must fail rather than undo another block."""
        return f"dualwrite_block_{self._savepoints}"

    async def end_block(self, tx: TxT) -> None:
        self._transaction.assert_intact()
        self._assert_within(tx)
        self._transaction.follow(self.progress.records)

    async def undo_block(self, tx: TxT) -> None:
        if self._transaction.is_busy:
            raise IllegalStateError(_UNFINISHED)
        self._assert_within(tx)
        try:
            await self._transaction.roll_back_to_savepoint(self._savepoint)
        except TimeoutError as error:
            raise IllegalStateError(_UNFINISHED) from error
        self._transaction.forgive()
        self._transaction.follow(self.progress.records)

    @staticmethod
    def _assert_within(tx: TxT) -> None:
        if tx.progress.records.rolled_back_beyond:
            raise TransactionEndedInsideError(_BEYOND)

    async def close_block(self, tx: TxT) -> None:
        """Do nothing: a block has nothing of its own."""

    def cut(self) -> None:
        if self._socket is not None:
            self._socket.cut()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


_UNFINISHED: Final = (
    "another block of this group ended inside connection.transaction(), or while its COPY, stream or other statement "
    "was in progress; neither database nor Kafka was changed: finish such statements inside the block, and repeat this "
    "one"
)
_BEYOND: Final = (
    "a block of this group undid more than itself, by rolling back to a savepoint that is not its own; neither "
    "database nor Kafka was changed: repeat this block, and set savepoints with connection.transaction()"
)
