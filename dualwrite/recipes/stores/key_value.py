"""The common part of dual writes on key-value stores: a block buffers its changes, and its end writes them atomically.

Such a store has no transactions that stay open, only atomic batches: RocksDB's write batch, ZooKeeper's multi. So the
block's changes are buffered like its records, and the prepared state is added to the same batch (KIP-939).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from dualwrite.errors import IllegalStateError, TransactionDoomedError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.coordinator import DualWrite, DualWriteCoordinator, Resolution
from dualwrite.recipes.core.kafka_participant import BlockingKafkaSide
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.settings import KafkaSettings
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sql.database_identity import DatabaseIdentity


class BatchTransaction(ABC):
    """The part of a `DatabaseTransaction` that all key-value stores share."""

    def __init__(self) -> None:
        self.commit_was_sent = False
        self._failure: BaseException | None = None
        self._ended = False

    def doom(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    def assert_intact(self) -> None:
        if self._failure is not None:
            raise TransactionDoomedError(
                f"a part of this dual write failed ({type(self._failure).__name__}) and its error was swallowed; "
                "neither the store nor Kafka was changed: let the error end the block"
            ) from self._failure

    def assert_open(self) -> None:
        """Raise IllegalStateError if the block has ended."""
        if self._ended or self.commit_was_sent:
            raise IllegalStateError("this dual write has ended, so nothing was changed: make changes inside its block")

    async def flush(self) -> None:  # noqa: B027 - there is nothing to do: the changes go with the commit
        """Do nothing: no change is held back from the store."""

    @abstractmethod
    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState: ...

    @abstractmethod
    async def read(self, transactional_id: str) -> PreparedTxnState: ...

    @abstractmethod
    async def write(self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState) -> None: ...

    async def lock_and_write(self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState) -> bool:
        return False  # the state is written by the same batch as the rest, so there is nothing to save

    @abstractmethod
    async def commit(self) -> None: ...

    async def rollback(self) -> None:
        self._end()

    async def close(self) -> None:
        self._end()

    def _end(self) -> None:
        """Release the lock; harmless when repeated. Raises none of the store's errors."""
        self._ended = True


TransactionT = TypeVar("TransactionT", bound=BatchTransaction)
TransactionT_co = TypeVar("TransactionT_co", bound=BatchTransaction, covariant=True)
WriteT = TypeVar("WriteT", bound=DualWrite)


class BatchStore(Protocol[TransactionT_co]):
    """A `Database` whose transactions are batches."""

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity: ...

    async def begin(self) -> TransactionT_co: ...

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None: ...


class KeyValueDualWriter(ABC, Generic[TransactionT, WriteT]):
    """Atomic writes to one key-value store and to Kafka, one at a time, under one transactional id."""

    def __init__(
        self,
        store: BatchStore[TransactionT],
        *,
        transactional_id: str,
        lock_timeout_ms: int | None,
        resolve_timeout_ms: int,
        max_buffered_bytes: int,
        pause: PauseHook | None,
        producer_settings: dict[str, Any],
    ) -> None:
        settings = KafkaSettings(transactional_id, producer_settings)
        self._serializers = settings.serializers
        self._max_buffered_bytes = max_buffered_bytes
        self._store = store
        self._writes = DualWriteCoordinator(
            settings.transactional_id,
            database=store,
            kafka=BlockingKafkaSide(settings.producer),
            sleep=blocking.sleep,
            lock_timeout_ms=lock_timeout_ms,
            resolve_timeout_ms=resolve_timeout_ms,
            pause=pause,
        )

    @abstractmethod
    def _new_write(self, transaction: TransactionT, records: RecordBuffer) -> WriteT: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def transactional_id(self) -> str:
        """The name that this writer was given, by which the database knows its row."""
        return self._writes.transactional_id

    @property
    def kafka_transactional_id(self) -> str | None:
        """What Kafka sees of it: with the suffix of the database. None before the first use, which asks for that."""
        return self._writes.kafka_transactional_id

    @property
    def state(self) -> SlotState:
        """What this writer knows about its transactional id."""
        return self._writes.state

    @property
    def in_doubt(self) -> PreparedTxnState:
        """The dual write that the store committed and whose Kafka commit is not confirmed yet; else empty.

        The next `transaction()` with records, or `recover()`, here or in any process, completes it first.
        """
        return self._writes.in_doubt

    @contextmanager
    def transaction(self) -> Iterator[WriteT]:
        """Run a block as one dual write: leaving it commits both sides, an exception changes neither.

        Changes and records are kept until the block ends. Raises what the block raises; InvalidRecordError,
        AbortableError, RecipeErrors, FencedError, KafkaTimeoutError and what the store says, after which neither side
        was changed; OutcomeUnknown where the store was told and nobody could be asked what became of it.
        """
        with self._writes.exclusively():
            blocking.run(self._writes.get_ready())
            transaction = blocking.run(self._store.begin())
            records = RecordBuffer(self._max_buffered_bytes, self._serializers)
            tx = self._new_write(transaction, records)
            try:
                try:
                    yield tx
                except BaseException:
                    blocking.run(self._writes.roll_back(tx))
                    raise
                blocking.run(self._writes.commit(tx))
            finally:
                records.close()
                blocking.run(transaction.close())

    def recover(self) -> Resolution:
        """Complete what a crash left open under this transactional id, by its state in the store; harmless at any time.

        A living owner of the id is fenced by it. Raises RowLockTimeoutError while a dual write of another holds it.
        """
        with self._writes.exclusively():
            return blocking.run(self._writes.recover())

    def resolve(self) -> Resolution:
        """Find out what became of the commit that raised OutcomeUnknown, and complete Kafka accordingly.

        Raises OutcomeUnknown again while the store cannot be asked, or where a later dual write of another process
        has replaced the state. With nothing unresolved it does what `recover()` does.
        """
        return self.recover()

    def close(self) -> None:
        """Give up the transactional id. What is in doubt stays so, safely, until the id is next used or recovered."""
        blocking.run(self._writes.close())
