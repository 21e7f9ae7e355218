"""The processes of the application: each writes under its transactional ids, with the library's writer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from dualwrite.delivery import Delivery, Direct
from dualwrite.errors import BoundExceededError, DualWriteError, RowLockTimeoutError, TransactionHangsError
from dualwrite.guarantee import Tier
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite, Resolution
from dualwrite.recipes.core.id_settings import OneId
from dualwrite.recipes.core.leases import outbox_prefix_of
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.waiting import TASKS, shield
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.writer import TaskWriter, Use
from tests.proof.simulation.brokers import PARTITIONS, TOPIC
from tests.proof.simulation.database import DatabaseGoneError, SimulatedDatabase, Transaction
from tests.proof.simulation.history import History
from tests.proof.simulation.leases import SimulatedLeases
from tests.proof.simulation.loop import SimulatedLoop
from tests.proof.simulation.network import Network
from tests.proof.simulation.outbox import SimulatedOutboxDatabase

Writer = TaskWriter[None, "Handle"]

POOL: Final = "pool"
"""The stand-in for an id of a pool, as long as it is not known, and the prefix of all of them."""

LEASE_MS: Final = 6_000

ROW: Final = "a row"
"""The row of the application that all blocks lock, if they do."""

_SUCCEEDED: Final = ("COMMITTED", "STORED")

EXPECTED: Final = (DualWriteError, DatabaseGoneError)
"""The errors that a caller handles."""


_MOST_REPEATED: Final = 3
"""How often the last dual write may fail: of a pool's slots, so many may be locked by connections that are gone."""


class RollBackError(Exception):
    """A block's own reason to roll back."""


class Handle(DualWrite):
    """A block's handle."""

    def __init__(self, database: Transaction, records: RecordBuffer) -> None:
        super().__init__(database, records, shield)
        self._database = database

    async def insert(self, table: str, key: Any, value: Any) -> None:
        """Write a row of the application."""
        await self._database.insert(table, key, value)

    async def lock_row(self, name: str) -> None:
        """Lock a row of the application."""
        await self._database.lock_row(name)


class SimulatedBackend:
    """The simulated database as a backend of writers."""

    waiting: Final = TASKS
    has_savepoints: Final = False
    leases_inside_blocks: Final = True
    connect_first: Final = None

    def __init__(self, database: SimulatedDatabase) -> None:
        self.database = database

    def begin_life(self) -> None:
        pass

    @property
    def outbox(self) -> SimulatedOutboxDatabase:
        assert isinstance(self.database, SimulatedOutboxDatabase), "the delivery asks for one"
        return self.database

    def leases(self, prefix: str, *, owner: str, lease_ms: int) -> SimulatedLeases:
        table = "outbox_lease" if prefix == outbox_prefix_of(POOL) else "lease"
        return SimulatedLeases(self.database, owner, lease_ms, table=table)

    async def begin(self, bind: None, records: RecordBuffer, use: Use) -> Handle:
        return Handle(await self.database.begin(), records)

    async def close(self) -> None:
        pass


class Settings:
    """The common settings of all writers of one simulation."""

    delivery: Delivery = Direct()
    """How the records of a pool reach Kafka."""
    locks_row: bool = False
    """Whether all blocks lock one row of the application."""

    def __init__(self, random: Random, bootstrap: str, tier: Tier) -> None:
        linger_ms = 20 if random.random() < 0.3 else 0
        self.by_commit = random.random() < 0.5
        self.producer: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "request_timeout_ms": 2_000,
            "delivery_timeout_ms": 4_000,
            "max_block_ms": 5_000,
            "linger_ms": linger_ms,
        }
        if tier in (Tier.BOUNDED, Tier.BOUNDED_V1):
            self.producer["transaction_timeout_ms"] = random.choice((3_000, 8_000, 60_000))
        self.consumes = tier in (Tier.KEEP_PREPARED, Tier.STORED_PAIR) and random.random() < 0.4
        """Whether consumed offsets go with the records; on other tiers that is refused."""

    def __repr__(self) -> str:
        return f"consumes={self.consumes} by_commit={self.by_commit} {self.producer}"


def new_writer(
    loop: SimulatedLoop, network: Network, settings: Settings, transactional_id: str, pause: PauseHook | None
) -> Writer:
    """Return a writer of the current process; for `POOL`, a pool of writers."""
    kind = SimulatedDatabase if settings.delivery == Direct() else SimulatedOutboxDatabase
    backend = SimulatedBackend(kind(loop, network, by_commit=settings.by_commit))
    given: dict[str, Any] = {
        "lock_timeout_ms": 3_000,
        "resolve_timeout_ms": 4_000,
        "pause": pause,
        "client_id": loop.current.name,
        **settings.producer,
    }
    if transactional_id != POOL:
        return TaskWriter(backend, OneId(transactional_id, given))
    of_pool = {"max_writers": 2, "acquire_timeout_ms": 4_000, "lease_ms": LEASE_MS, "delivery": settings.delivery}
    pool = PoolSettings(POOL, {**of_pool, **given})
    return TaskWriter(backend, pool)


def group_of(transactional_id: str) -> str:
    """Return the consumer group whose offsets go with the writes of an id."""
    return f"group of {transactional_id}"


def recovered(history: History, transactional_id: str, found: list[Resolution], by: str = "") -> None:
    """Note the result of recover()."""
    for each in found:
        history.recover(each)
    history.note(f"{by}recover({transactional_id}) found {', '.join(each.outcome.name for each in found)}")


class Application:
    """The program of one process: some dual writes, each tried until it is known to be over or given up."""

    def __init__(
        self,
        history: History,
        random: Random,
        new: Callable[[str], Writer],
        transactional_ids: list[str],
        name: str,
        *,
        consumes: bool,
        locks_row: bool,
        operate: Callable[[BaseException], Awaitable[None]],
    ) -> None:
        """`operate` is called after each error, for an operator."""
        self._operate = operate
        self._history = history
        self._random = random
        self._new = new
        self._ids = transactional_ids
        self._name = name
        self._consumes = consumes and transactional_ids != [POOL]
        self._locks_row = locks_row
        self._writers: dict[str, Writer] = {}

    async def run(self, writes: int) -> None:
        """Carry out so many dual writes."""
        if self._ids == [POOL]:
            half = (writes + 1) // 2
            await asyncio.gather(self._write_all(range(half)), self._write_all(range(half, writes)))
        else:
            await self._write_all(range(writes))
        for writer in self._writers.values():
            try:
                await writer.close()
            except EXPECTED as error:
                self._history.note(f"{self._name}: close() raised {type(error).__name__}")

    async def _write_all(self, numbers: range) -> None:
        random = self._random
        for number in numbers:
            transactional_id = self._ids[int(random.random() * len(self._ids))]
            if random.random() < 0.3:
                await asyncio.sleep(random.random())
            if random.random() < 0.2:
                await self._recover(transactional_id)
            await self._write(f"{self._name}.{number}", transactional_id)

    async def write_at_last(self, transactional_id: str) -> None:
        """Carry out one dual write after healing; it has to succeed.

        The database may still hold the lock of a free slot for a connection that is gone. The block that gets this slot
        raises RowLockTimeoutError; repeated, it gets another one. A block that waits for a row of the application gives
        its connection up. On a slow disk the block that takes the id over may exceed a transaction.timeout.ms of 3 s.
        """
        repeated: tuple[type[Exception], ...] = (BoundExceededError, TransactionHangsError)
        if transactional_id == POOL:
            repeated += (RowLockTimeoutError,)
        if self._locks_row:
            repeated += (DatabaseGoneError,)
        failed = await self._write(self._name, transactional_id, may_roll_back=False)
        for attempt in range(_MOST_REPEATED):
            if not isinstance(failed, repeated):
                break
            failed = await self._write(f"{self._name} ({attempt + 2})", transactional_id, may_roll_back=False)
        if self._history.told[-1].outcome not in _SUCCEEDED:
            self._history.wrong(f"{transactional_id} cannot be used after recover()")

    def _writer(self, transactional_id: str) -> Writer:
        writer = self._writers.get(transactional_id)
        if writer is None:
            writer = self._writers[transactional_id] = self._new(transactional_id)
        return writer

    async def _write(
        self, write: str, transactional_id: str, *, may_roll_back: bool = True
    ) -> DualWriteError | DatabaseGoneError | None:
        """Carry out one dual write, and note its outcome. Return the error that its caller got."""
        writer = self._writer(transactional_id)
        tx: Handle | None = None
        failed: DualWriteError | DatabaseGoneError | None = None
        why = ""
        self._history.begin(write)
        try:
            async with writer.scope() as tx:
                for partition in range(PARTITIONS):
                    tx.send(TOPIC, write.encode(), partition=partition)
                if self._consumes:
                    position = self._history.next_position()
                    tx.send_offsets({(TOPIC, 0): position}, group_of(transactional_id))
                    await tx.insert("offsets", transactional_id, position)
                if self._locks_row:
                    await tx.lock_row(ROW)
                await tx.insert("writes", write, write)
                if may_roll_back and self._random.random() < 0.1:
                    raise RollBackError
        except RollBackError:
            why = "(rolled back by its block)"
        except EXPECTED as error:
            failed, why = error, f"({type(error).__name__})"
            await self._after(error, writer)
        outcome = tx.outcome.name if tx is not None and tx.outcome is not None else None
        if tx is None:
            outcome = "ROLLED_BACK"
        elif not why and outcome not in _SUCCEEDED:
            self._history.wrong(f"the block of {write} ended without an error, and its outcome is {outcome}")
        self._history.tell(write, outcome, why)
        return failed

    async def _after(self, error: BaseException, writer: Writer) -> None:
        """Act as applications do after an error: sometimes make a new writer, and wait a little."""
        await self._operate(error)
        is_lost = not writer.is_pool and writer.state.name in ("FENCED", "CLOSED")
        if is_lost or self._random.random() < 0.2:
            self._writers = {its_id: each for its_id, each in self._writers.items() if each is not writer}
            try:
                await writer.close()
            except EXPECTED as failed:
                self._history.note(f"{self._name}: close() raised {type(failed).__name__}")
        await asyncio.sleep(self._random.random() * 2)

    async def _recover(self, transactional_id: str) -> None:
        writer = self._writer(transactional_id)
        try:
            found = await writer.recover()
        except EXPECTED as error:
            self._history.note(f"{self._name}: recover({transactional_id}) raised {type(error).__name__}")
            await self._after(error, writer)
        else:
            recovered(self._history, transactional_id, found, by=f"{self._name}: ")
