"""The table of an outbox and the diversion of a pool, in the simulated database: for `Outbox()` and stored blocks.

Rows are read as committed, as PostgreSQL reads them. The row of the diversion is shared by blocks that hold it, and
waits for them to be changed. Numbers of blocks come again after a failover.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from dualwrite.errors import RowLockTimeoutError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.store import (
    NO_BATCH,
    NO_STORED_BLOCKS,
    Backlog,
    LastBatch,
    Sent,
    StoredBlock,
    StoredBlocks,
    Way,
)
from tests.proof.simulation.database import (
    Client,
    DatabaseServer,
    Reply,
    Session,
    SimulatedDatabase,
    Transaction,
)
from tests.proof.simulation.leases import LeaseTable

_DIVERSION: Final = ("diversion", "")
_LAST: Final = ("last batch", "")
_MOST_AT_A_TIME: Final = 3
"""How many blocks a batch has at most, so that there are several."""


class _Waiter(NamedTuple):
    session: Session
    reply: Reply
    begins_ms: int | None
    """The time that it writes if there is no diversion; None to lock alone."""
    exclusive: bool


# ---- the server -----------------------------------------------------------------------------------------------------


class OutboxServer(DatabaseServer):
    """A primary with one outbox, its leases and its diversion."""

    _next_seq = 1

    def __init__(self, *arguments: Any) -> None:
        self.outbox_leases: Final = LeaseTable()
        self._sharers: set[Session] = set()
        self._changer: Session | None = None
        self._waiters: list[_Waiter] = []
        super().__init__(*arguments)

    def _seen(self, session: Session, key: tuple[str, Any]) -> Any:
        return session.written.get(key, self.visible.get(key))

    def _blocks(self, session: Session) -> dict[int, tuple[int, bytes]]:
        """Return the blocks by their numbers, those of the last batch too."""
        rows = self.visible | session.written
        return {key[1]: row for key, row in rows.items() if key[0] == "outbox" and row is not None}

    def on_outbox_lease(self, session: Session, reply: Reply, kind: str, *given: Any) -> None:
        """Carry out a transaction on the table of leases."""
        reply(self.outbox_leases.carry_out(self._loop.now_s + self.process.clock_offset_s, kind, *given))

    # ---- blocks ---------------------------------------------------------------------------------------------

    def on_add(self, session: Session, reply: Reply, content: bytes) -> None:
        """Add a block."""
        seq, now_ms = self._next_seq, int(self._loop.now_s * 1000)
        self._next_seq += 1
        session.written["outbox", seq] = now_ms, content
        reply((seq, now_ms))

    def on_waiting(self, session: Session, reply: Reply) -> None:
        """Return the blocks that wait, in their order."""
        last = self._seen(session, _LAST)
        taken = last[2] if last else ()
        reply([(seq, *row) for seq, row in sorted(self._blocks(session).items()) if seq not in taken])

    def on_publish(self, session: Session, reply: Reply, seqs: Sequence[int], kept_as: Sent | None) -> None:
        """Delete the last batch and these blocks, or keep them as the last batch."""
        last, blocks = self._seen(session, _LAST), self._blocks(session)
        for seq in (*(last[2] if last else ()), *(() if kept_as else seqs)):
            session.written["published", blocks[seq][1]] = True
            session.written["outbox", seq] = None
        session.written[_LAST] = None if kept_as is None else (str(kept_as.state), kept_as.partitions, tuple(seqs))
        reply(True)

    def on_last_batch(self, session: Session, reply: Reply, state: str) -> None:
        """Return the contents and the partitions of the last batch, if this state has published it."""
        last, blocks = self._seen(session, _LAST), self._blocks(session)
        found = last is not None and last[0] == state
        reply(LastBatch([blocks[seq][1] for seq in last[2]], last[1]) if found else NO_BATCH)

    def on_was_committed(self, session: Session, reply: Reply, seq: int, content: bytes) -> None:
        """Return whether a block was committed; None while its transaction may still be."""
        changes = [each.written for each in self.sessions if each is not session]
        changes += [change.rows for _, change, _ in self._waits.values()]
        if any((change.get(("outbox", seq)) or (0, b""))[1] == content for change in changes):
            reply(None)
            return
        row = self.visible.get(("outbox", seq))
        reply((row is not None and row[1] == content) or ("published", content) in self.visible)

    # ---- the diversion --------------------------------------------------------------------------------------

    def on_way(self, session: Session, reply: Reply) -> None:
        """Return the time of the diversion; 0 if there is none."""
        reply(self._seen(session, _DIVERSION) or 0)

    def on_hold(self, session: Session, reply: Reply, limit_s: float) -> None:
        """Share the lock of the row, and return its time."""
        self._wait(_Waiter(session, reply, None, exclusive=False), limit_s)

    def on_lock_diversion(self, session: Session, reply: Reply, limit_s: float) -> None:
        """Lock the row, and return its time."""
        self._wait(_Waiter(session, reply, None, exclusive=True), limit_s)

    def on_divert(self, session: Session, reply: Reply, limit_s: float, now_ms: int) -> None:
        """Begin a diversion. Return whether there was none."""
        if self._seen(session, _DIVERSION):
            reply(False)
        else:
            self._wait(_Waiter(session, reply, now_ms, exclusive=True), limit_s)

    def on_end_diversion(self, session: Session, reply: Reply) -> None:
        """End it; the row is locked."""
        session.written[_DIVERSION] = 0
        reply(True)

    def _wait(self, waiter: _Waiter, limit_s: float) -> None:
        self._waiters.append(waiter)
        self._grant()
        if waiter in self._waiters:
            self._loop.call_at_in(self.process, self._loop.now_s + limit_s, self._wait_no_longer, waiter)

    def _wait_no_longer(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            waiter.reply(RowLockTimeoutError(""))

    def _grant(self) -> None:
        for waiter in tuple(self._waiters):
            others = self._sharers - {waiter.session}
            if self._changer not in (None, waiter.session) or (waiter.exclusive and others):
                continue
            self._waiters.remove(waiter)
            found = self._seen(waiter.session, _DIVERSION) or 0
            if waiter.exclusive:
                self._changer = waiter.session
            else:
                self._sharers.add(waiter.session)
            if waiter.begins_ms is not None and not found:
                waiter.session.written[_DIVERSION] = waiter.begins_ms
            waiter.reply(found if waiter.begins_ms is None else not found)

    def _unlock(self, session: Session) -> None:
        super()._unlock(session)
        self._sharers.discard(session)
        self._changer = None if self._changer is session else self._changer
        self._waiters = [waiter for waiter in self._waiters if waiter.session is not session]
        self._grant()

    def crash(self, *, fails_over: bool) -> None:
        self._sharers.clear()
        self._changer = None
        self._waiters.clear()
        super().crash(fails_over=fails_over)
        if fails_over:
            self._next_seq = 1 + max((key[1] for key in self.visible if key[0] == "outbox"), default=0)

    def waits_at_rest(self) -> list[int]:
        """Return the numbers of the blocks that wait."""
        last = self.visible.get(_LAST)
        return [
            key[1]
            for key, row in self.visible.items()
            if key[0] == "outbox" and row is not None and key[1] not in (last[2] if last else ())
        ]


# ---- the client -----------------------------------------------------------------------------------------------------


class OutboxTransaction(Transaction):
    """A transaction that may add a block, or publish some."""

    def stored_blocks(self, transactional_id: str) -> StoredBlocks:
        return SimulatedBlocks(self._client) if transactional_id.endswith("-outbox-0") else NO_STORED_BLOCKS

    def diversion(self, name: str, timeout_ms: int | None = None) -> SimulatedDiversion:
        return SimulatedDiversion(self, float("inf") if timeout_ms is None else timeout_ms / 1000)

    async def add_to_outbox(self, transactional_id: str, content: bytes) -> StoredBlock:
        seq, at_ms = await self.ask("add", content)
        return StoredBlock(seq, at_ms, content)

    async def ask(self, kind: str, *given: Any) -> Any:
        """Execute a statement."""
        return await self._client.request(kind, *given)


class SimulatedBlocks:
    """`StoredBlocks` of the outbox."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def append(self, transactional_id: str, content: bytes) -> StoredBlock:
        seq, at_ms = await self._client.request("add", content)
        return StoredBlock(seq, at_ms, content)

    async def waiting(self, transactional_id: str, *, max_bytes: int) -> tuple[int, Sequence[StoredBlock]]:
        found = [StoredBlock(*row) for row in await self._client.request("waiting")]
        return found[-1].seq if found else 0, found[:_MOST_AT_A_TIME]

    async def take_out(self, transactional_id: str, block: StoredBlock) -> None:
        raise AssertionError("nothing is refused")

    async def publish(
        self, transactional_id: str, blocks: Sequence[StoredBlock], *, kept_as: Sent | None = None
    ) -> None:
        await self._client.request("publish", [block.seq for block in blocks], kept_as)

    async def last_batch(self, transactional_id: str, state: PreparedTxnState) -> LastBatch:
        found: LastBatch = await self._client.request("last_batch", str(state))
        return found

    async def was_committed(self, transactional_id: str, added: StoredBlock) -> bool | None:
        found: bool | None = await self._client.request("was_committed", added.seq, added.content)
        return found


class SimulatedDiversion:
    """`Diversion`, inside one transaction."""

    def __init__(self, database: OutboxTransaction, limit_s: float) -> None:
        self._database = database
        self._limit_s = limit_s

    async def way_now(self) -> Way | None:
        return await self.way()

    async def way(self) -> Way:
        return Way(bool(await self._database.ask("way")))

    async def begin(self, now_ms: int) -> bool:
        return bool(await self._database.ask("divert", self._limit_s, now_ms))

    async def hold(self) -> bool:
        return bool(await self._database.ask("hold", self._limit_s))

    async def lock(self) -> bool:
        return bool(await self._database.ask("lock_diversion", self._limit_s))

    async def ask(self, number: int) -> None:
        """Do nothing: no order rests on it."""

    async def end(self) -> None:
        await self._database.ask("end_diversion")


class SimulatedOutboxDatabase(SimulatedDatabase):
    """An `OutboxDatabase` as one process uses it."""

    async def begin(self) -> OutboxTransaction:
        return OutboxTransaction(await Client.connect(self._loop, self._network), by_commit=self._by_commit)

    async def prepare_diversion(self, name: str) -> None:
        pass

    async def prepare_outbox(self) -> None:
        pass

    async def has_waiting(self, transactional_id: str) -> bool:
        return bool(await self._once("waiting"))

    async def backlog(self, transactional_id: str) -> Backlog:
        return Backlog(0, 0, 0)  # no simulation reaches the limits

    async def vacuum_outbox(self) -> None:
        pass
