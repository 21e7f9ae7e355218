"""The dual write on RocksDB: data and prepared state in one atomic write batch, the state in its own column family.

    db = rocksdict.Rdict("/var/lib/shop")
    writer = RocksDbDualWriter(db, bootstrap_servers="127.0.0.1:9092", transactional_id="shop-1")
    with writer.transaction() as tx:
        tx.put("stock:lamp", 41)
        tx.send("stock", key="lamp", value="41")

A key-value store has no transactions that stay open, only atomic batches. So a block buffers its changes like its
records, and its end adds the prepared state to the same batch (KIP-939).

Only one process can have a RocksDB open; a file lock ensures that. So a lock inside this process serves as the row
lock, and it ends with the process. Why that is safe: docs/internals/stores.md.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from rocksdict import ColumnFamily, Options, Rdict, WriteBatch, WriteOptions

from dualwrite.errors import ConfigError, IllegalStateError, TransactionDoomedError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_identity import DatabaseIdentity, new_suffix
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.id_settings import OneId
from dualwrite.recipes.core.store import NO_STORED_BLOCKS, StoredBlocks, not_as_locked, state_in, stayed_locked
from dualwrite.recipes.core.waiting import THREADS
from dualwrite.recipes.writer import ThreadWriter, Use

__all__ = ["STATE_COLUMN_FAMILY", "RocksDbDualTransaction", "RocksDbDualWriter"]

STATE_COLUMN_FAMILY: Final = "kafka_transaction_state"
"""Its keys are transactional ids and its values `producer id:epoch`, both as UTF-8.

The key of a transactional id's manifest is that id after a byte with which no UTF-8 begins. A separate column family
would have to be named by every caller that opens the database with a list of them.
"""

_MANIFEST_PREFIX: Final = b"\xff"

_SUFFIX_KEY: Final = ""
"""A key that is no transactional id; its value is the suffix that this database adds to its ids in Kafka."""


@dataclass
class _Open:
    """The state that the writers of this process share for one open database."""

    locks: dict[str, threading.Lock] = field(default_factory=dict)
    failed_writes: int = 0
    """Failed writes; each may still be in the log, and reappear when it is replayed, until a write succeeds."""
    superseded_failures: int = 0
    """How many of the failed writes were superseded by a later, successful write."""


_open: dict[str, _Open] = {}
_guard: Final = threading.Lock()
_counting: Final = threading.Lock()
"""Held while failures are counted; inside `_guard`, never around it."""


class _RocksDbTransaction:
    def __init__(self, store: _RocksDbStore) -> None:
        self.commit_was_sent = False
        self.was_ended_past = False
        self._failure: BaseException | None = None
        self._ended = False
        self._store = store
        self._held: threading.Lock | None = None
        self._batch = store.new_batch()

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

    def put(self, key: Any, value: Any, column_family: str | None) -> None:
        self._assert_open()
        self._batch.put(key, value, self._store.family(column_family))

    def delete(self, key: Any, column_family: str | None) -> None:
        self._assert_open()
        self._batch.delete(key, self._store.family(column_family))

    def _assert_open(self) -> None:
        if self._ended or self.commit_was_sent:
            raise IllegalStateError("this dual write has ended, so nothing was changed: make changes inside its block")

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        lock = self._store.lock_of(transactional_id)
        if not lock.acquire(timeout=-1 if timeout_ms is None else timeout_ms / 1000):
            raise stayed_locked(transactional_id, timeout_ms)
        self._held = lock
        self._store.supersede_failures(transactional_id)
        return await self.read(transactional_id)

    async def read(self, transactional_id: str) -> PreparedTxnState:
        return state_in(transactional_id, self._store.state_of(transactional_id))

    async def read_manifest(self, transactional_id: str) -> str:
        return self._store.manifest_of(transactional_id)

    async def write(
        self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState, manifest: str
    ) -> None:
        if self._held is None or self._store.state_of(transactional_id) != str(previous):
            raise not_as_locked(transactional_id, previous, past="this writer")
        states = self._store.family(STATE_COLUMN_FAMILY)
        self._batch.put(transactional_id.encode(), str(new).encode(), states)
        if manifest:
            self._batch.put(_MANIFEST_PREFIX + transactional_id.encode(), manifest.encode(), states)
        else:
            self._batch.delete(_MANIFEST_PREFIX + transactional_id.encode(), states)

    async def commit(self) -> None:
        self.commit_was_sent = True
        self._store.write_durably(self._batch)

    async def rollback(self) -> None:
        self._end()

    async def close(self) -> None:
        self._end()

    def close_at_once(self) -> bool:
        self._end()
        return True

    def _end(self) -> None:
        """Release the lock; harmless when repeated."""
        self._ended = True
        held, self._held = self._held, None
        if held is not None:
            held.release()


class _RocksDbStore:
    errors: tuple[type[Exception], ...] = (Exception,)  # rocksdict has no more precise class

    def __init__(self, db: Rdict, *, raw_mode: bool) -> None:
        self._db = db
        self._raw_mode = raw_mode
        self._durably = WriteOptions()
        self._durably.sync = True  # a decision that Kafka completes must survive a crash of the machine
        with _guard:
            self._shared = _open.setdefault(db.path(), _Open())

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        with _guard:
            if STATE_COLUMN_FAMILY not in Rdict.list_cf(self._db.path()):
                self._db.create_column_family(STATE_COLUMN_FAMILY, Options(raw_mode=self._raw_mode))
            if self.state_of(_SUFFIX_KEY) is None:
                self.rewrite(_SUFFIX_KEY, new_suffix())
            if self.state_of(transactional_id) is None:
                self.rewrite(transactional_id, "")
            return DatabaseIdentity(self.state_of(_SUFFIX_KEY) or "")

    async def begin(self) -> _RocksDbTransaction:
        return _RocksDbTransaction(self)

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        """Do nothing: a batch is visible only once it is synced, or after a crash once opening wrote it to a table."""

    def new_batch(self) -> WriteBatch:
        return WriteBatch(raw_mode=self._raw_mode)

    def family(self, name: str | None) -> ColumnFamily | None:
        return None if name is None else self._db.get_column_family_handle(name)

    def lock_of(self, transactional_id: str) -> threading.Lock:
        with _guard:
            return self._shared.locks.setdefault(transactional_id, threading.Lock())

    def state_of(self, transactional_id: str) -> str | None:
        return self._text_at(transactional_id.encode())

    def manifest_of(self, transactional_id: str) -> str:
        return self._text_at(_MANIFEST_PREFIX + transactional_id.encode()) or ""

    def _text_at(self, key: bytes) -> str | None:
        found: bytes | None = self._db.get_column_family(STATE_COLUMN_FAMILY).get(key)
        return None if found is None else found.decode()

    def supersede_failures(self, transactional_id: str) -> None:
        """Write once after a failed write, before any value that is read may decide.

        RocksDB accepts no write until it has abandoned the log that may contain the failed one.
        """
        failed = self._shared.failed_writes  # this write does not supersede one that fails from here on
        if failed > self._shared.superseded_failures:
            self.rewrite(transactional_id, self.state_of(transactional_id) or "")
            with _counting:
                self._shared.superseded_failures = max(failed, self._shared.superseded_failures)

    def write_durably(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch, self._durably)
        except BaseException:
            with _counting:
                self._shared.failed_writes += 1
            raise

    def rewrite(self, transactional_id: str, text: str) -> None:
        batch = self.new_batch()
        batch.put(transactional_id.encode(), text.encode(), self.family(STATE_COLUMN_FAMILY))
        self.write_durably(batch)


class RocksDbDualTransaction(DualWrite):
    """One dual write, as yielded by `RocksDbDualWriter.transaction()`."""

    def __init__(self, transaction: _RocksDbTransaction, records: RecordBuffer) -> None:
        super().__init__(transaction, records)
        self._transaction = transaction

    def put(self, key: Any, value: Any, column_family: str | None = None) -> None:
        """Set `key` when the block commits; until then, reading from the database returns the old value.

        Raises IllegalStateError after the end of the block, and rocksdict's errors for the key or value.
        """
        self._transaction.put(key, value, column_family)

    def delete(self, key: Any, column_family: str | None = None) -> None:
        """Delete `key` when the block commits. Raises the same errors as `put`."""
        self._transaction.delete(key, column_family)


class _RocksDbBackend:
    waiting: Final = THREADS
    has_savepoints: Final = False

    def __init__(self, store: _RocksDbStore) -> None:
        self.database: Final = store

    async def begin(self, bind: None, records: RecordBuffer, use: Use) -> RocksDbDualTransaction:
        return RocksDbDualTransaction(await self.database.begin(), records)

    async def close(self) -> None:
        """Close nothing: the database belongs to the caller."""


class RocksDbDualWriter(ThreadWriter[None, RocksDbDualTransaction]):
    """Atomic writes to one RocksDB and to Kafka, one at a time, under one transactional id.

    The caller closes `db`; its options must have the same `raw_mode` as given here. The column family
    `kafka_transaction_state` is created if missing. `lock_timeout_ms` limits the wait for another writer of this
    process that uses the transactional id (None: no limit), `resolve_timeout_ms` the retries against a database that
    refuses writes, and `max_buffered_bytes` the memory for the records of one dual write. `producer_settings` are
    producer settings, under Kafka's names with underscores. Raises ConfigError. Not thread-safe.
    """

    def __init__(
        self,
        db: Rdict,
        *,
        raw_mode: bool = False,
        **settings: Any,
    ) -> None:
        ids = _one_id(settings)
        super().__init__(_RocksDbBackend(_RocksDbStore(db, raw_mode=raw_mode)), ids)

    def transaction(self) -> AbstractContextManager[RocksDbDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception changes neither.

        Changes and records are kept until the block ends. Raises the block's own exception; InvalidRecordError,
        AbortableError, RecipeErrors, FencedError, KafkaTimeoutError and the store's errors, after which neither side
        was changed; OutcomeUnknown if the changes were sent to the store and its state cannot be read.
        """
        return self.scope()


def _one_id(settings: Mapping[str, Any]) -> OneId:
    """Return the slot policy of a writer. Raises ConfigError, also for settings of pools and of tables."""
    for name in ("prefix", "delivery", "create_table", "schema"):
        if name in settings:
            raise ConfigError(f"{name} cannot be set here: RocksDB has no tables, and one process opens it at a time")
    given = dict(settings)
    return OneId(given.pop("transactional_id", None), given)
