"""The dual write on ZooKeeper: data and prepared state in one multi, the state in a node of its own.

    client = KazooClient("127.0.0.1:2181"); client.start()
    writer = ZooKeeperDualWriter(client, bootstrap_servers="127.0.0.1:9092", transactional_id="shop-1")
    with writer.transaction() as tx:
        tx.set("/stock/lamp", b"41")
        tx.send("stock", key="lamp", value="41")

ZooKeeper has no lock that lasts until a transaction ends: a lock node goes with its session, and its owner may be the
last to know. What plays the row lock is the version of the state node. Whoever locks writes the node again, which
raises its version, and the multi that decides sets the node at exactly the version that its own lock gave. So to lock
is to take the decision away from everybody who has locked before, and from then on what the node says is final for
them. A lock node besides, which makes the others wait, only saves work. The proof: docs/databases.md.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress
from typing import Any, Final
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
from dualwrite.recipes.core.buffer import DEFAULT_MAX_BUFFERED_BYTES, RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.state_row import not_as_locked, state_in, stayed_locked
from dualwrite.recipes.sql.database_identity import DatabaseIdentity, new_suffix
from dualwrite.recipes.stores.key_value import BatchTransaction, KeyValueBackend, KeyValueDualWriter
from dualwrite.recipes.writer import OneId

__all__ = ["DEFAULT_STATE_PATH", "ZooKeeperDualTransaction", "ZooKeeperDualWriter"]

DEFAULT_STATE_PATH: Final = "/kafka_transaction_state"
"""Each transactional id has a node below it, whose data is `producer id:epoch`. Its own data is what this ZooKeeper
adds to the ids, for Kafka."""

_ANY_VERSION: Final = -1  # what a set with this version compares: nothing
_LAST_VERSION: Final = -2  # versions are counted in 32 bits and come around


def node_name(transactional_id: str) -> str:
    """The id as the name of a node, which may not have slashes, nor be `.` or `..`."""
    return quote(transactional_id, safe="").replace(".", "%2E")


def add_versioned_set(multi: TransactionRequest, path: str, data: bytes, version: int) -> int:
    """Set `path` if it is at `version`; returns the version that it then has, which is never the one that is any's."""
    multi.set_data(path, data, version)
    if version == _LAST_VERSION:
        multi.set_data(path, data, _ANY_VERSION)  # in the same breath, so nobody sees that one
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
        """Where changes are added. Raises IllegalStateError after the end of the block."""
        self.assert_open()
        return self._multi

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        if not self._store.wait_for_turn(transactional_id, timeout_ms):
            raise stayed_locked(transactional_id, timeout_ms)
        self._locked = transactional_id
        text, self._version = self._store.take(transactional_id)
        return state_in(transactional_id, text)

    async def read(self, transactional_id: str) -> PreparedTxnState:
        """Lock once more: a plain reading may be of a server that lags behind, and shows nobody who came since."""
        found = state_in(transactional_id, self._store.look(transactional_id)[0])
        try:
            self._version = self._store.take_at(transactional_id, str(found), self._version)
        except BadVersionError as error:
            raise _lost(transactional_id) from error
        return found

    async def write(self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState) -> None:
        if self._locked != transactional_id:
            raise not_as_locked(transactional_id, previous, past="this writer")
        self._state_written_at = len(self._multi.operations)
        add_versioned_set(self._multi, self._store.path(transactional_id), str(new).encode(), self._version)

    async def commit(self) -> None:
        if not self._multi.operations:
            return
        self.commit_was_sent = True
        results = self._store.answer(self._multi.commit_async())
        refused = _refusal(results)
        if refused is None:
            return
        self.commit_was_sent = False  # it was answered, and a multi is carried out whole or not at all
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
        f"transactional id {transactional_id!r} was locked by another process since, which took the decision away from "
        "this dual write; neither ZooKeeper nor Kafka was changed: give each process an id of its own"
    )


def _refusal(results: list[Any]) -> KazooException | None:
    """Return why nothing was carried out, or None where everything was.

    Usually one operation names the cause and the others only say that they were not carried out either; where none
    names it, the multi was refused all the same.
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

    def new_multi(self) -> TransactionRequest:
        return self._client.transaction()

    def answer(self, asked: Any) -> Any:
        """What comes back in time; without a limit a request would wait for as long as the connection is away."""
        return asked.get(timeout=self._request_timeout_s)

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        with suppress(NodeExistsError):
            self.answer(self._client.create_async(self.path(transactional_id), b"", makepath=True))
        return DatabaseIdentity(self._suffix())

    def _suffix(self) -> str:
        """The data of the node above those of the ids; made where there is none yet."""
        while True:
            self.answer(self._client.sync_async(self._state_path))
            data, stat = self.answer(self._client.get_async(self._state_path))
            if data:
                return bytes(data).decode()
            with suppress(BadVersionError):  # another process made it in this instant
                self.answer(self._client.set_async(self._state_path, new_suffix().encode(), stat.version))

    async def begin(self) -> _ZooKeeperTransaction:
        return _ZooKeeperTransaction(self)

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        """It is: whoever locks or reads the row again writes it, and ZooKeeper answers when a quorum has it on disk."""

    # -- the version, which fences -----------------------------------------------------------------------------

    def look(self, transactional_id: str) -> tuple[str | None, int]:
        """Data and version, as the server sees them that we are connected to, which may lag behind."""
        try:
            data, stat = self.answer(self._client.get_async(self.path(transactional_id)))
        except NoNodeError:
            return None, 0
        return data.decode(), stat.version

    def take(self, transactional_id: str) -> tuple[str | None, int]:
        """From now on nobody else can decide: the data, which is final for them, and the version that is now ours."""
        while True:
            text, version = self.look(transactional_id)
            if text is None:
                return None, 0
            try:
                return text, self.take_at(transactional_id, text, version)
            except BadVersionError:  # another one took it in this instant, or we saw an older state
                self.answer(self._client.sync_async(self.path(transactional_id)))

    def take_at(self, transactional_id: str, text: str, version: int) -> int:
        """Write the node as it is, at `version`. Raises BadVersionError."""
        multi = self.new_multi()
        ours = add_versioned_set(multi, self.path(transactional_id), text.encode(), version)
        refused = _refusal(self.answer(multi.commit_async()))
        if refused is not None:
            raise refused
        return ours

    # -- the lock node, which only saves work ------------------------------------------------------------------

    def wait_for_turn(self, transactional_id: str, timeout_ms: int | None) -> bool:
        """Whether everybody else who wants the id now waits for us."""
        deadline_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            try:
                self.answer(self._client.create_async(self._turn(transactional_id), self._token, ephemeral=True))
                return True
            except NodeExistsError:
                gone = self._hear_of_its_end(transactional_id)
            if gone is None:
                return True
            if not gone.wait(None if deadline_s is None else max(deadline_s - time.monotonic(), 0)):
                return False

    def _hear_of_its_end(self, transactional_id: str) -> threading.Event | None:
        """None where the turn is our own, which an earlier transaction could not give back."""
        gone = threading.Event()
        try:
            asked = self._client.get_async(self._turn(transactional_id), watch=lambda event: gone.set())
            token, _ = self.answer(asked)
        except NoNodeError:
            gone.set()
            return gone
        return None if token == self._token else gone

    def give_turn(self, transactional_id: str) -> None:
        """At once where ZooKeeper answers, else with the session at the latest.

        After a session was lost it may take another one's turn away, who then has no less safety, but company.
        """
        self._client.delete_async(self._turn(transactional_id))

    def _turn(self, transactional_id: str) -> str:
        return f"{self.path(transactional_id)}/lock"


class ZooKeeperDualTransaction(DualWrite):
    """One dual write; what `ZooKeeperDualWriter.transaction()` yields.

    The changes are carried out as one multi when the block commits, in order; what is read before that is the old
    state. Each raises IllegalStateError after the end of the block.
    """

    def __init__(self, transaction: _ZooKeeperTransaction, records: RecordBuffer) -> None:
        super().__init__(transaction, records)
        self._transaction = transaction

    def create(self, path: str, value: bytes = b"") -> None:
        """Create a persistent node, which must not be there."""
        self._transaction.multi.create(path, value)

    def set(self, path: str, value: bytes, version: int = _ANY_VERSION) -> None:
        """Set the data of a node, which must be there, and at `version` unless that is -1."""
        self._transaction.multi.set_data(path, value, version)

    def delete(self, path: str, version: int = _ANY_VERSION) -> None:
        """Delete a node, which must be there, without children, and at `version` unless that is -1."""
        self._transaction.multi.delete(path, version)

    def check(self, path: str, version: int) -> None:
        """Commit only if a node is still at `version`."""
        self._transaction.multi.check(path, version)


class ZooKeeperDualWriter(KeyValueDualWriter[_ZooKeeperTransaction, ZooKeeperDualTransaction]):
    """Atomic writes to one ZooKeeper and to Kafka, one at a time, under one transactional id.

    `client` is started, and stays the caller's. `state_path` is where the nodes of the transactional ids are; it is
    created when missing. `request_timeout_ms` is how long one answer of ZooKeeper is waited for, `lock_timeout_ms` how
    long another process may hold the transactional id (None: for ever), `resolve_timeout_ms` how long a ZooKeeper that
    does not answer the multi is asked again, and `max_buffered_bytes` how much the records of one dual write may take
    in memory. `producer_settings` are the producer's, by Kafka's names with underscores.

    Two living writers with one transactional id are safe but useless: each fences the other. Use one id per
    concurrent writer. Not for use by several threads at once. Raises ConfigError.
    """

    def __init__(
        self,
        client: KazooClient,
        *,
        transactional_id: str,
        state_path: str = DEFAULT_STATE_PATH,
        request_timeout_ms: int = 10_000,
        lock_timeout_ms: int | None = 60_000,
        resolve_timeout_ms: int = 30_000,
        max_buffered_bytes: int = DEFAULT_MAX_BUFFERED_BYTES,
        pause: PauseHook | None = None,
        **producer_settings: Any,
    ) -> None:
        one_id = OneId(
            transactional_id,
            lock_timeout_ms=lock_timeout_ms,
            resolve_timeout_ms=resolve_timeout_ms,
            max_buffered_bytes=max_buffered_bytes,
            pause=pause,
            producer_settings=producer_settings,
        )
        store = _ZooKeeperStore(client, state_path=state_path, request_timeout_ms=request_timeout_ms)
        super().__init__(KeyValueBackend(BackendName.ZOOKEEPER, store, ZooKeeperDualTransaction), one_id)
