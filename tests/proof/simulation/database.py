"""The database: a primary whose commits become durable a while after they were written, behind the network.

It behaves as PostgreSQL with a synchronous standby does. COMMIT is written to the log, and waits for the standby; then
the change becomes visible, its locks are released, and the client gets the response. A cancelled wait, or a restart of
the primary, leaves a visible change that may be lost. A failover loses the changes that the standby does not have:
never an acknowledged one. A session without its client keeps its locks until it notices.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from dualwrite.errors import NotDurableError, RowLockTimeoutError, StateRowError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.database_identity import DatabaseIdentity
from dualwrite.recipes.core.store import (
    NO_STORED_BLOCKS,
    StoredBlocks,
    manifest_in,
    not_as_locked,
    not_durable,
    state_in,
    stayed_locked,
    wait_given_up,
)
from tests.proof.simulation.loop import Process, SimulatedLoop
from tests.proof.simulation.network import End, Listener, Network

PORT: Final = 5432
PLACE: Final = "database"
_STATEMENT_TIMEOUT_S: Final = 8.0
_IDENTITY: Final = DatabaseIdentity("simulat8")

Key = tuple[str, Any]
"""A table, and the key of a row in it."""


class Change(NamedTuple):
    """One transaction's changes, as they stand in the log."""

    rows: dict[Key, Any]


# ---- the server -----------------------------------------------------------------------------------------------------


class Session:
    """One connection as the server sees it."""

    def __init__(self, server: DatabaseServer, end: End) -> None:
        self.server = server
        self.end = end
        self.written: dict[Key, Any] = {}
        self.locked: set[str] = set()
        self.is_committing = False
        end.on_message = self._on_message
        end.on_lost = self._on_lost
        server.sessions.append(self)

    def _on_message(self, message: tuple[int, str, tuple[Any, ...]]) -> None:
        number, kind, given = message

        def reply(result: object) -> None:
            self.end.send((number, result))

        getattr(self.server, f"on_{kind}")(self, reply, *given)

    def _on_lost(self, _: Exception | None) -> None:
        if not self.is_committing:
            self.server.roll_back(self)
        self.server.forget(self)


class _Waiter(NamedTuple):
    session: Session
    reply: Callable[[object], None]
    key: str
    deadline_s: float


Reply = Callable[[object], None]


class DatabaseServer:
    """The primary and its standby. `on_*` are the statements."""

    def __init__(self, loop: SimulatedLoop, network: Network, random: Random) -> None:
        self.process: Final = Process(PLACE)
        self.sessions: list[Session] = []
        self.visible: dict[Key, Any] = {}
        self.log: list[Change] = []
        self.durable = 0
        """How many changes of the log the standby has."""
        self.on_durable: Callable[[Change], None] = _ignore
        self.standby_is_away = False
        self.leases: Callable[..., Any] = _ignore
        """Carries out a transaction on the table of leases at a time."""
        self._waits: dict[int, tuple[Session | None, Change, Reply]] = {}
        """By position in the log: the session whose COMMIT waits for the standby."""
        self._holders: dict[str, Session] = {}
        self._queue: deque[_Waiter] = deque()
        self._loop = loop
        self._network = network
        self._random = random
        self.begin_listening()

    def begin_listening(self) -> None:
        """Accept connections."""
        self._network.listeners[PORT] = Listener(self.process, PLACE, lambda end: _keep(Session(self, end)))

    # ---- statements -----------------------------------------------------------------------------------------

    def on_insert(self, session: Session, reply: Reply, key: Key, value: Any) -> None:
        """Write a row of the application."""
        session.written[key] = value
        reply(True)

    def on_lock(self, session: Session, reply: Reply, row: str, timeout_s: float | None) -> None:
        """Lock a state row, and return it."""
        holder = self._holders.get(row)
        if holder is not None and holder is not session:
            deadline_s = float("inf") if timeout_s is None else self._loop.now_s + timeout_s
            waiter = _Waiter(session, reply, row, deadline_s)
            self._queue.append(waiter)
            if timeout_s is not None:
                self._loop.call_at_in(self.process, deadline_s, self._give_up, waiter)
            return
        self._holders[row] = session
        session.locked.add(row)
        reply(self._row(session, row))

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter in self._queue:
            self._queue.remove(waiter)
            waiter.reply(RowLockTimeoutError(""))

    def _row(self, session: Session, row: str) -> Any:
        key = ("state", row)
        return session.written.get(key, self.visible.get(key))

    def on_read(self, session: Session, reply: Reply, row: str) -> None:
        """Return a locked state row."""
        reply(self._row(session, row) if row in session.locked else ConnectionResetError("the transaction has ended"))

    def on_write(self, session: Session, reply: Reply, row: str, previous: str, new: tuple[str, str]) -> None:
        """Replace a locked state row."""
        if row not in session.locked or self._row(session, row)[0] != previous:
            reply(StateRowError(""))
            return
        session.written["state", row] = new
        reply(True)

    def on_ensure(self, session: Session, reply: Reply, row: str) -> None:
        """Create a state row."""
        self.visible.setdefault(("state", row), ("", ""))
        reply(True)

    def on_commit(self, session: Session, reply: Reply, carried: tuple[str, str, tuple[str, str]] | None) -> None:
        """Commit: write the change to the log, and wait for the standby."""
        if carried is not None:
            row, previous, new = carried
            if row not in session.locked or self._row(session, row)[0] != previous:
                reply(StateRowError(""))
                return
            session.written["state", row] = new
        session.is_committing = True
        self._append(session, Change(session.written), reply)

    def on_touch(self, session: Session, reply: Reply, row: str, expected: str) -> None:
        """Commit a separate change if the state row is as expected, so that everything before it is durable."""
        found = self.visible["state", row][0]
        if found != expected:
            reply(NotDurableError(f"another connection finds {found!r}"))
            return
        self._append(None, Change({("touched", row): self._loop.now_s}), reply)

    def on_lease(self, session: Session, reply: Reply, kind: str, *given: Any) -> None:
        """Carry out a transaction on the table of leases."""
        reply(self.leases(self._loop.now_s + self.process.clock_offset_s, kind, *given))

    def on_rollback(self, session: Session, reply: Reply) -> None:
        """Roll back."""
        self.roll_back(session)
        reply(True)

    # ---- the end of transactions ----------------------------------------------------------------------------

    def _append(self, session: Session | None, change: Change, reply: Reply) -> None:
        self.log.append(change)
        self._waits[len(self.log)] = (session, change, reply)
        if not self.standby_is_away:
            delay_s = 0.0002 + 0.003 * self._random.random() ** 2
            self._loop.call_at_in(self.process, self._loop.now_s + delay_s, self._ship, len(self.log), self.log)

    def _ship(self, position: int, log: list[Change]) -> None:
        """Note that the standby has the log up to a position, unless a failover replaced that log."""
        if log is not self.log or self.standby_is_away:
            return
        while self.durable < position:
            self.on_durable(self.log[self.durable])
            self.durable += 1
            waits = self._waits.pop(self.durable, None)
            if waits is not None:
                self._show(waits[0], waits[1])
                waits[2](True)

    def _show(self, session: Session | None, change: Change) -> None:
        self.visible.update(change.rows)
        if session is not None:
            session.is_committing = False
            session.written = {}
            self._unlock(session)

    def roll_back(self, session: Session) -> None:
        """Drop a session's changes, and its locks."""
        session.written = {}
        for waiter in [waiter for waiter in self._queue if waiter.session is session]:
            self._queue.remove(waiter)
        self._unlock(session)

    def forget(self, session: Session) -> None:
        """Drop a session."""
        if session in self.sessions:
            self.sessions.remove(session)

    def _unlock(self, session: Session) -> None:
        for row in sorted(session.locked):
            if self._holders.get(row) is session:
                del self._holders[row]
        session.locked.clear()
        for waiter in tuple(self._queue):
            if waiter.key not in self._holders and waiter in self._queue:
                self._queue.remove(waiter)
                self.on_lock(waiter.session, waiter.reply, waiter.key, None)

    # ---- events ---------------------------------------------------------------------------------------------

    def set_standby(self, *, is_away: bool) -> None:
        """Let the standby go away, or come back and catch up."""
        self.standby_is_away = is_away
        if not is_away:
            self._ship(len(self.log), self.log)

    def cancel_waits(self) -> None:
        """Cancel every COMMIT that waits: the change is visible, and not durable yet."""
        waits, self._waits = self._waits, {}
        for session, change, reply in waits.values():
            self._show(session, change)
            reply(NotDurableError(""))

    def kill_session(self, session: Session) -> None:
        """End a connection."""
        if not session.is_committing:
            self.roll_back(session)
        self.forget(session)
        session.end.close(ConnectionResetError("terminating connection"))

    def crash(self, *, fails_over: bool) -> None:
        """Restart; everything in the log is visible then. `fails_over`: the standby takes over with its own log."""
        self._waits.clear()
        self._holders.clear()
        self._queue.clear()
        if fails_over:
            self.log = self.log[: self.durable]
        self.visible = {key: ("", "") for key in self.visible if key[0] == "state"}
        for change in self.log:
            self.visible.update(change.rows)
        for session in self.sessions:
            session.written = {}
            session.locked.clear()
            session.is_committing = False
        self.sessions.clear()
        self._network.drop_connections_of(self.process)
        self._network.listeners.pop(PORT, None)
        self.set_standby(is_away=self.standby_is_away)


def _keep(_: Session) -> None:
    """Do nothing: the server has it."""


# ---- the client -----------------------------------------------------------------------------------------------------


class DatabaseGoneError(Exception):
    """The connection is lost, and with it the transaction, unless it was being committed."""


class Client:
    """One connection as a client sees it."""

    def __init__(self, loop: SimulatedLoop, end: End) -> None:
        self._loop = loop
        self._end = end
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        end.on_message = self._on_message
        end.on_lost = self._on_lost

    @classmethod
    async def connect(cls, loop: SimulatedLoop, network: Network) -> Client:
        """Connect. Raises DatabaseGoneError."""
        process = loop.current
        try:
            async with asyncio.timeout(_STATEMENT_TIMEOUT_S):
                return cls(loop, await network.open(process, process.name, PORT))
        except (OSError, TimeoutError) as error:
            raise DatabaseGoneError(f"cannot connect: {error}") from error

    async def request(self, kind: str, *given: Any, timeout_s: float = _STATEMENT_TIMEOUT_S) -> Any:
        """Send a statement and return its result. Raises DatabaseGoneError, and the server's refusals."""
        if self._end.is_closed:
            raise DatabaseGoneError("the connection is closed")
        self._number += 1
        waiting = self._waiting[self._number] = self._loop.create_future()
        self._end.send((self._number, kind, given))
        timer = self._loop.call_later(timeout_s, self._on_timeout)
        try:
            result = await waiting
        finally:
            timer.cancel()
        if isinstance(result, ConnectionError):
            raise DatabaseGoneError(str(result)) from result
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Close the connection."""
        self._end.close()

    def _on_timeout(self) -> None:
        self._end.close(TimeoutError("no response"))

    def _on_message(self, message: tuple[int, object]) -> None:
        waiting = self._waiting.pop(message[0], None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message[1])

    def _on_lost(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(DatabaseGoneError(f"the connection was lost: {error}"))


class Transaction:
    """A `DatabaseTransaction`."""

    def __init__(self, client: Client, *, by_commit: bool) -> None:
        self._client = client
        self._is_over = False
        self._by_commit = by_commit
        self._carried: tuple[str, str, tuple[str, str]] | None = None
        self._doom: BaseException | None = None
        self.commit_was_sent = False
        self.was_ended_past = False

    def stored_blocks(self, transactional_id: str) -> StoredBlocks:
        return NO_STORED_BLOCKS

    async def insert(self, table: str, key: Any, value: Any) -> None:
        """Write a row of the application."""
        await self._client.request("insert", (table, key), value)

    async def lock_row(self, name: str) -> None:
        """Lock a row of the application."""
        await self._client.request("lock", name, None)

    def doom(self, error: BaseException) -> None:
        self._doom = error

    async def flush(self) -> None:
        if self._doom is not None:
            raise self._doom

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        limit_s = None if timeout_ms is None else timeout_ms / 1000
        patience_s = _STATEMENT_TIMEOUT_S + (limit_s or 60.0)
        try:
            row = await self._client.request("lock", transactional_id, limit_s, timeout_s=patience_s)
        except RowLockTimeoutError:
            raise stayed_locked(transactional_id, timeout_ms) from None
        return state_in(transactional_id, None if row is None else row[0])

    async def read(self, transactional_id: str) -> PreparedTxnState:
        row = await self._client.request("read", transactional_id)
        return state_in(transactional_id, None if row is None else row[0])

    async def read_manifest(self, transactional_id: str) -> str:
        row = await self._client.request("read", transactional_id)
        return manifest_in(transactional_id, None if row is None else row[1])

    async def write(
        self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState, manifest: str
    ) -> None:
        if self._by_commit:
            self._carried = (transactional_id, str(previous), (str(new), manifest))
            return
        try:
            await self._client.request("write", transactional_id, str(previous), (str(new), manifest))
        except StateRowError:
            raise not_as_locked(transactional_id, previous, past="the simulation") from None

    async def commit(self) -> None:
        self.commit_was_sent = True
        try:
            await self._client.request("commit", self._carried)
        except StateRowError:
            self.commit_was_sent = False  # COMMIT was not reached
            assert self._carried is not None
            previous = PreparedTxnState(self._carried[1])
            raise not_as_locked(self._carried[0], previous, past="the simulation") from None
        except NotDurableError:
            raise wait_given_up(None) from None
        self._is_over = True

    async def rollback(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._client.close()

    async def close(self) -> None:
        self._client.close()

    def close_at_once(self) -> bool:
        self._client.close()
        return True


class SimulatedDatabase:
    """A `Database` as one process uses it."""

    def __init__(self, loop: SimulatedLoop, network: Network, *, by_commit: bool) -> None:
        self._loop = loop
        self._network = network
        self._by_commit = by_commit
        self.errors: tuple[type[Exception], ...] = (DatabaseGoneError,)

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        await self._once("ensure", transactional_id)
        return _IDENTITY

    async def begin(self) -> Transaction:
        client = await Client.connect(self._loop, self._network)
        return Transaction(client, by_commit=self._by_commit)

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        try:
            await self._once("touch", transactional_id, str(row), timeout_s=timeout_ms / 1000)
        except NotDurableError as error:
            raise not_durable(transactional_id, row, str(error) or "the wait was cancelled") from error
        except DatabaseGoneError as error:
            raise not_durable(transactional_id, row, str(error)) from error

    async def lease(self, table: str, kind: str, *given: Any) -> Any:
        """Carry out a transaction on a table of leases."""
        return await self._once(table, kind, *given)

    async def _once(self, kind: str, *given: Any, timeout_s: float = _STATEMENT_TIMEOUT_S) -> Any:
        client = await Client.connect(self._loop, self._network)
        try:
            return await client.request(kind, *given, timeout_s=timeout_s)
        finally:
            client.close()


def _ignore(*_: Any) -> None:
    pass
