"""The dual write on ZooKeeper: data and prepared state in one atomic multi, the state in a separate node.

    client = KazooClient("127.0.0.1:2181"); client.start()
    writer = ZooKeeperDualWriter(client, bootstrap_servers="127.0.0.1:9092", transactional_id="shop-1")
    with writer.transaction() as tx:
        tx.set("/stock/lamp", b"41")
        tx.send("stock", key="lamp", value="41")

ZooKeeper has no lock that lasts until a transaction ends: a lock node disappears with its session, possibly before its
owner notices. So the version of the state node serves as the row lock. Locking writes the node again, which raises its
version, and the deciding multi sets the node only at the version that its own lock produced. A lock thus prevents every
earlier lock holder from deciding, and the node's data is final for them. An additional lock node makes others wait,
which only saves work. The proof: docs/internals/stores.md.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress
from typing import Any, Final, Unpack
from urllib.parse import quote

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError

from dualwrite.errors import StateRowError
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
from dualwrite.settings import ZooKeeperWriterSettings

__all__ = ["DEFAULT_STATE_PATH", "ZooKeeperDualTransaction", "ZooKeeperDualWriter"]

DEFAULT_STATE_PATH: Final = "/kafka_transaction_state"
"""The parent of a node per transactional id, whose data is `producer id:epoch`; the data of its child is the manifest.
The parent's own data is the suffix that this ZooKeeper adds to its ids in Kafka."""

_ANY_VERSION: Final = -1  # a set with this version compares nothing
_LAST_VERSION: Final = -2  # versions have 32 bits and wrap around


def node_name(transactional_id: str) -> str:
    """Return the id as a node name, which may not contain slashes, nor be `.` or `..`."""
    return quote(transactional_id, safe="").replace(".", "%2E")


def add_versioned_set(multi: TransactionRequest, path: str, data: bytes, version: int) -> int:
    """Add a set of `path`, if it is at `version`; return its new version, which is never `_ANY_VERSION`."""
    multi.set_data(path, data, version)
    if version == _LAST_VERSION:
        multi.set_data(path, data, _ANY_VERSION)  # in the same multi, so `_ANY_VERSION` is never visible
        return 0
    return version + 1


class _ZooKeeperTransaction(BatchTransaction):
    def __init__(self, store: _ZooKeeperStore) -> None:
        super().__init__()
        self._store = store
        self._locked: str | None = None
        self._version = 0
        self._state_written_at: int | None = None
        self._multi = store.new_multi()

    @property
    def multi(self) -> TransactionRequest:
        """The multi to which changes are added. Raises IllegalStateError after the end of the block."""
        self.assert_open()
        return self._multi

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        if not self._store.wait_for_turn(transactional_id, timeout_ms):
            raise stayed_locked(transactional_id, timeout_ms)
        self._locked = transactional_id
        text, self._version = self._store.take(transactional_id)
        return state_in(transactional_id, text)

    async def read(self, transactional_id: str) -> PreparedTxnState:
        """Lock again: a plain read may come from a server that lags behind, and would not show a later lock."""
        found = state_in(transactional_id, self._store.look(transactional_id)[0])
        try:
            self._version = self._store.take_at(transactional_id, str(found), self._version)
        except BadVersionError as error:
            raise _lost(transactional_id) from error
        return found

    async def read_manifest(self, transactional_id: str) -> str:
        """Read the manifest without a lock: a server that has executed our lock has all earlier writes."""
        return self._store.manifest_of(transactional_id)

    async def write(
        self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState, manifest: str
    ) -> None:
        if self._locked != transactional_id:
            raise not_as_locked(transactional_id, previous, past="this writer")
        self._multi.set_data(self._store.manifest_path(transactional_id), manifest.encode(), _ANY_VERSION)
        self._state_written_at = len(self._multi.operations)
        add_versioned_set(self._multi, self._store.path(transactional_id), str(new).encode(), self._version)

    async def commit(self) -> None:
        if not self._multi.operations:
            return
        self.commit_was_sent = True
        results = self._store.response(self._multi.commit_async())
        refused = _refusal(results)
        if refused is None:
            return
        self.commit_was_sent = False  # it was refused, and a multi is atomic
        if self._locked is not None and refused in results[self._state_written_at :]:
            raise _lost(self._locked) from refused
        raise refused

    def _end(self) -> None:
        super()._end()
        locked, self._locked = self._locked, None
        if locked is not None:
            self._store.give_turn(locked)


def _lost(transactional_id: str) -> StateRowError:
    return StateRowError(
        f"transactional id {transactional_id!r} was locked by another process meanwhile, so this dual write can no "
        "longer decide; neither ZooKeeper nor Kafka was changed: give each process an id of its own"
    )


def _refusal(results: list[Any]) -> KazooException | None:
    """Return why the multi was refused, or None if it was executed.

    Usually one operation has the cause as its error, and the others only report that they were not executed either. A
    multi was refused even if no operation in it has a cause.
    """
    errors = [result for result in results if isinstance(result, KazooException)]
    causes = [error for error in errors if not isinstance(error, RolledBackError | RuntimeInconsistency)]
    return next(iter([*causes, *errors]), None)


class _ZooKeeperStore:
    errors: tuple[type[Exception], ...] = (KazooException, KazooTimeoutError)

    def __init__(self, client: KazooClient, *, state_path: str, request_timeout_ms: int) -> None:
        self._client = client
        self._state_path = state_path.rstrip("/")
        self._request_timeout_s = request_timeout_ms / 1000
        self._token = uuid.uuid4().bytes

    def path(self, transactional_id: str) -> str:
        return f"{self._state_path}/{node_name(transactional_id)}"

    def manifest_path(self, transactional_id: str) -> str:
        return f"{self.path(transactional_id)}/manifest"

    def new_multi(self) -> TransactionRequest:
        return self._client.transaction()

    def response(self, request: Any) -> Any:
        """Wait for a response for a limited time: kazoo itself would wait for as long as the connection is lost."""
        return request.get(timeout=self._request_timeout_s)

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        for path in (self.path(transactional_id), self.manifest_path(transactional_id)):
            with suppress(NodeExistsError):
                self.response(self._client.create_async(path, b"", makepath=True))
        return DatabaseIdentity(self._suffix())

    def _suffix(self) -> str:
        """Return the suffix in the parent node; create one if there is none yet."""
        while True:
            self.response(self._client.sync_async(self._state_path))
            data, stat = self.response(self._client.get_async(self._state_path))
            if data:
                return bytes(data).decode()
            with suppress(BadVersionError):  # another process created it at the same time
                self.response(self._client.set_async(self._state_path, new_suffix().encode(), stat.version))

    async def begin(self) -> _ZooKeeperTransaction:
        return _ZooKeeperTransaction(self)

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        """Do nothing: locking or reading the row writes it, which ZooKeeper confirms once a quorum has it on disk."""

    # -- the version, which fences -----------------------------------------------------------------------------

    def look(self, transactional_id: str) -> tuple[str | None, int]:
        """Return data and version as known to the connected server, which may lag behind."""
        try:
            data, stat = self.response(self._client.get_async(self.path(transactional_id)))
        except NoNodeError:
            return None, 0
        return data.decode(), stat.version

    def manifest_of(self, transactional_id: str) -> str:
        try:
            data, _ = self.response(self._client.get_async(self.manifest_path(transactional_id)))
        except NoNodeError:
            return ""
        return bytes(data).decode()

    def take(self, transactional_id: str) -> tuple[str | None, int]:
        """Prevent all earlier lock holders from deciding; return the data, which is final for them, and our version."""
        while True:
            text, version = self.look(transactional_id)
            if text is None:
                return None, 0
            try:
                return text, self.take_at(transactional_id, text, version)
            except BadVersionError:  # another process locked at the same time, or the data read was outdated
                self.response(self._client.sync_async(self.path(transactional_id)))

    def take_at(self, transactional_id: str, text: str, version: int) -> int:
        """Write the node unchanged, at `version`, and return its new version. Raises BadVersionError."""
        multi = self.new_multi()
        ours = add_versioned_set(multi, self.path(transactional_id), text.encode(), version)
        refused = _refusal(self.response(multi.commit_async()))
        if refused is not None:
            raise refused
        return ours

    # -- the lock node, which only saves work ------------------------------------------------------------------

    def wait_for_turn(self, transactional_id: str, timeout_ms: int | None) -> bool:
        """Create the lock node, and return whether that succeeded in time."""
        deadline_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            try:
                self.response(self._client.create_async(self._turn(transactional_id), self._token, ephemeral=True))
                return True
            except NodeExistsError:
                gone = self._watch_turn(transactional_id)
            if gone is None:
                return True
            if not gone.wait(None if deadline_s is None else max(deadline_s - time.monotonic(), 0)):
                return False

    def _watch_turn(self, transactional_id: str) -> threading.Event | None:
        """Return an event that is set when the lock node disappears, or None if the node is our own."""
        gone = threading.Event()
        try:
            request = self._client.get_async(self._turn(transactional_id), watch=lambda event: gone.set())
            token, _ = self.response(request)
        except NoNodeError:
            gone.set()
            return gone
        return None if token == self._token else gone

    def give_turn(self, transactional_id: str) -> None:
        """Delete the lock node without waiting; if that request fails, the node ends with the session.

        After a lost session this may delete another process's lock node, which costs that process time, not safety.
        """
        self._client.delete_async(self._turn(transactional_id))

    def _turn(self, transactional_id: str) -> str:
        return f"{self.path(transactional_id)}/lock"


class ZooKeeperDualTransaction(DualWrite):
    """One dual write, as yielded by `ZooKeeperDualWriter.transaction()`.

    When the block commits, the changes are executed in order as one multi; until then, reading returns the old state.
    Each method raises IllegalStateError after the end of the block.
    """

    def __init__(self, transaction: _ZooKeeperTransaction, records: RecordBuffer) -> None:
        super().__init__(transaction, records)
        self._transaction = transaction

    def create(self, path: str, value: bytes = b"") -> None:
        """Create a persistent node, which must not exist yet."""
        self._transaction.multi.create(path, value)

    def set(self, path: str, value: bytes, version: int = _ANY_VERSION) -> None:
        """Set the data of a node, which must exist, and be at `version` unless that is -1."""
        self._transaction.multi.set_data(path, value, version)

    def delete(self, path: str, version: int = _ANY_VERSION) -> None:
        """Delete a node, which must exist, have no children, and be at `version` unless that is -1."""
        self._transaction.multi.delete(path, version)

    def check(self, path: str, version: int) -> None:
        """Commit only if a node is still at `version`."""
        self._transaction.multi.check(path, version)


class ZooKeeperDualWriter(KeyValueDualWriter[_ZooKeeperTransaction, ZooKeeperDualTransaction]):
    """Atomic writes to one ZooKeeper and to Kafka, one at a time, under one transactional id.

    `client` must be started, and the caller stops it. `state_path` is the parent of the nodes of the transactional ids;
    it is created if missing. `request_timeout_ms` limits the wait for one response of ZooKeeper, `lock_timeout_ms` the
    wait for another process that uses the transactional id (None: no limit), `resolve_timeout_ms` the retries after a
    multi without a response, and `max_buffered_bytes` the memory for the records of one dual write. `producer_settings`
    are producer settings, under Kafka's names with underscores.

    Two live writers with one transactional id are safe but useless: each fences the other. Use one id per
    concurrent writer. Not thread-safe. Raises ConfigError.
    """

    def __init__(
        self,
        client: KazooClient,
        *,
        state_path: str = DEFAULT_STATE_PATH,
        request_timeout_ms: int = 10_000,
        **settings: Unpack[ZooKeeperWriterSettings],
    ) -> None:
        one_id = one_id_of_store(BackendName.ZOOKEEPER, settings)
        store = _ZooKeeperStore(client, state_path=state_path, request_timeout_ms=request_timeout_ms)
        super().__init__(KeyValueBackend(BackendName.ZOOKEEPER, store, ZooKeeperDualTransaction), one_id)
