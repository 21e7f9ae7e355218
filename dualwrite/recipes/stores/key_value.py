"""The common part of dual writes on key-value stores: a block buffers its changes, and its end writes them atomically.

Such a store has no transactions that stay open, only atomic batches: RocksDB's write batch, ZooKeeper's multi. So the
block's changes are buffered like its records, and the prepared state is added to the same batch (KIP-939).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, Protocol, TypeVar

from dualwrite.errors import ConfigError, IllegalStateError, TransactionDoomedError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.capabilities import BackendName, Feature, assert_can
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.id_settings import OneId
from dualwrite.recipes.core.store import NO_STORED_BLOCKS, StoredBlocks
from dualwrite.recipes.core.waiting import THREADS
from dualwrite.recipes.sql.database_identity import DatabaseIdentity
from dualwrite.recipes.writer import ThreadWriter, Use


class BatchTransaction(ABC):
    """The part of a `DatabaseTransaction` that all key-value stores share."""

    def __init__(self) -> None:
        self.commit_was_sent = False
        self.was_ended_past = False
        self._failure: BaseException | None = None
        self._ended = False

    def stored_blocks(self, transactional_id: str) -> StoredBlocks:
        return NO_STORED_BLOCKS

    def doom(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    async def flush(self) -> None:
        if self._failure is not None:
            raise TransactionDoomedError(
                f"a part of this dual write failed ({type(self._failure).__name__}) and its error was swallowed; "
                "neither the store nor Kafka was changed: let the error end the block"
            ) from self._failure

    def assert_open(self) -> None:
        """Raise IllegalStateError if the block has ended."""
        if self._ended or self.commit_was_sent:
            raise IllegalStateError("this dual write has ended, so nothing was changed: make changes inside its block")

    @abstractmethod
    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState: ...

    @abstractmethod
    async def read(self, transactional_id: str) -> PreparedTxnState: ...

    @abstractmethod
    async def read_manifest(self, transactional_id: str) -> str: ...

    @abstractmethod
    async def write(
        self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState, manifest: str
    ) -> None: ...

    @abstractmethod
    async def commit(self) -> None: ...

    async def rollback(self) -> None:
        self._end()

    async def close(self) -> None:
        self._end()

    def close_at_once(self) -> bool:
        self._end()
        return True

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


class KeyValueBackend(Generic[TransactionT, WriteT]):
    """One key-value store, as a backend of the writers; `handle` makes a block's handle."""

    waiting: Final = THREADS

    def __init__(
        self,
        name: BackendName,
        store: BatchStore[TransactionT],
        handle: Callable[[TransactionT, RecordBuffer], WriteT],
    ) -> None:
        self.name: Final = name
        self.database: Final = store
        self._handle = handle

    async def begin(self, bind: None, records: RecordBuffer, use: Use) -> WriteT:
        """Begin a batch; a caller's own batch cannot be used."""
        return self._handle(await self.database.begin(), records)

    async def close(self) -> None:
        """Close nothing: the store belongs to the caller."""


def one_id_of_store(name: BackendName, settings: Mapping[str, Any]) -> OneId:
    """Return the slot policy of a writer. Raises ConfigError, also for a pool, and for settings of tables."""
    for setting, feature in (("prefix", Feature.POOL), ("delivery", Feature.DELIVERY)):
        if setting in settings:
            assert_can(name, feature)
    for setting in ("create_table", "schema"):
        if setting in settings:
            raise ConfigError(f"{setting} cannot be set here: {name} has no tables")
    given = dict(settings)
    return OneId(given.pop("transactional_id", None), given)


class KeyValueDualWriter(ThreadWriter[None, WriteT], Generic[TransactionT, WriteT]):
    """Atomic writes to one key-value store and to Kafka, one at a time, under one transactional id."""

    def transaction(self) -> AbstractContextManager[WriteT]:
        """Run a block as one dual write: leaving it commits both sides, an exception changes neither.

        Changes and records are kept until the block ends. Raises the block's own exception; InvalidRecordError,
        AbortableError, RecipeErrors, FencedError, KafkaTimeoutError and the store's errors, after which neither side
        was changed; OutcomeUnknown if the changes were sent to the store and its state cannot be read.
        """
        return self.scope()
