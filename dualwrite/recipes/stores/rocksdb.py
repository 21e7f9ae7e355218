"""The dual write on RocksDB: data and prepared state in one atomic write batch, the state in its own column family.

    db = rocksdict.Rdict("/var/lib/shop")
    writer = RocksDbDualWriter(db, bootstrap_servers="127.0.0.1:9092", transactional_id="shop-1")
    with writer.transaction() as tx:
        tx.put("stock:lamp", 41)
        tx.send("stock", key="lamp", value="41")

Only one process can have a RocksDB open; a file lock ensures that. So a lock inside this process serves as the row
lock, and it ends with the process. Why that is safe: docs/internals/stores.md.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Final, Unpack

from rocksdict import ColumnFamily, Options, Rdict, WriteBatch, WriteOptions

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.capabilities import BackendName
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.store import not_as_locked, state_in, stayed_locked
from dualwrite.recipes.sql.database_identity import DatabaseIdentity, new_suffix
from dualwrite.recipes.stores.key_value import (
    BatchTransaction,
    KeyValueBackend,
    KeyValueDualWriter,
    one_id_of_store,
)
from dualwrite.settings import StoreWriterSettings

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


class _RocksDbTransaction(BatchTransaction):
    def __init__(self, store: _RocksDbStore) -> None:
        super().__init__()
        self._store = store
        self._held: threading.Lock | None = None
        self._batch = store.new_batch()

    def put(self, key: Any, value: Any, column_family: str | None) -> None:
        self.assert_open()
        self._batch.put(key, value, self._store.family(column_family))

    def delete(self, key: Any, column_family: str | None) -> None:
        self.assert_open()
        self._batch.delete(key, self._store.family(column_family))

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

    def _end(self) -> None:
        super()._end()
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


class RocksDbDualWriter(KeyValueDualWriter[_RocksDbTransaction, RocksDbDualTransaction]):
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
        **settings: Unpack[StoreWriterSettings],
    ) -> None:
        one_id = one_id_of_store(BackendName.ROCKSDB, settings)
        store = _RocksDbStore(db, raw_mode=raw_mode)
        super().__init__(KeyValueBackend(BackendName.ROCKSDB, store, RocksDbDualTransaction), one_id)
