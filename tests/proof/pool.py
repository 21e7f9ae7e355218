"""A process with a pool of transactional ids: the real leases, slots, blocks and background.

Only the carriers of requests and statements are replaced, and the threads: the background does one thing at a time,
while a block waits for a reply (`Interrupt`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar
from unittest import mock

from dualwrite.errors import DualWriteError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import id_settings
from dualwrite.recipes.core.availability import Availability
from dualwrite.recipes.core.buffer import BufferedOffsets, BufferedRecord, RecordBuffer
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.dual_write import DualWriteProgress
from dualwrite.recipes.core.store import NO_STORED_BLOCKS, state_in, stayed_locked
from dualwrite.recipes.core.turns import IdUsers
from dualwrite.recipes.core.waiting import direct
from dualwrite.recipes.pool import maintenance
from dualwrite.recipes.pool.coordinator import PoolCoordinator
from dualwrite.recipes.pool.runtime import Steps
from dualwrite.recipes.pool.settings import PoolSettings
from tests.proof.automaton import DatabaseGone, Program, Said, ask
from tests.proof.clock import Clock
from tests.proof.kafka_model import NO_DEADLINE_MS, Profile
from tests.proof.kafka_requests import TOPIC
from tests.proof.lanes import OfSlot, lane_of
from tests.proof.lease_model import PREFIX, CheckedLeases
from tests.proof.owner import (
    A_MOMENT_S,
    RECOVERED,
    RETURNED,
    Begin,
    CheckedDatabase,
    CheckedKafka,
    CheckedTransaction,
    LockInTime,
    Moment,
    NoWatch,
)

ResultT = TypeVar("ResultT")

LAST_WRITE: Final = b"z1"
"""The value that a pool writes when everything is recovered."""

_SETTINGS: Final = {
    "max_writers": 1,
    "acquire_timeout_ms": 0,
    "lease_ms": NO_DEADLINE_MS,
    "lock_timeout_ms": None,
    "resolve_timeout_ms": NO_DEADLINE_MS,
    "bootstrap_servers": "localhost:9092",
}


_LONG_MS: Final = 60_000
"""A program waits for a lock for ever if it may wait for longer than this."""


class Interrupt(Enum):
    """The reply to a process whose background acts first; the request is sent again afterwards."""

    RENEW = "renews its leases"
    RECOVER = "resolves its slots and those of dead processes"


# ---- one id of several ----------------------------------------------------------------------------------------------


@types.coroutine
def on_slot(slot: int, steps: Coroutine[Any, Any, ResultT]) -> Generator[Hashable, Any, ResultT]:
    """Carry out steps whose requests concern the id of a slot."""
    reply: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = steps.send(reply) if error is None else steps.throw(error)
        except StopIteration as end:
            result: ResultT = end.value
            return result
        reply = error = None
        try:
            reply = yield request if slot == 0 or isinstance(request, OfSlot) else OfSlot(slot, request)
        except BaseException as thrown:
            error = thrown


@types.coroutine
def _carried_out(
    steps: Coroutine[Any, Any, None], background: Callable[[Interrupt], Coroutine[Any, Any, None]] | None = None
) -> Generator[Hashable, Any, None]:
    """Carry out steps, and with `background` the background's orders meanwhile.

    Without it, the steps are the background's, which does one thing at a time: it ignores orders.
    """
    reply: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = steps.send(reply) if error is None else steps.throw(error)
        except StopIteration:
            return
        reply = error = None
        try:
            reply = yield request
            while isinstance(reply, Interrupt):
                if background is not None:
                    yield from _carried_out(background(reply))
                reply = yield request
        except BaseException as thrown:
            error = thrown


async def _driven(
    steps: Coroutine[Any, Any, None], background: Callable[[Interrupt], Coroutine[Any, Any, None]] | None = None
) -> None:
    await _carried_out(steps, background)


class PooledKafka(CheckedKafka):
    """Kafka's side of one id of a pool; all requests go through `_live`, whose id is known after `take_over`."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self._slot = 0

    async def take_over(self, kafka_id: str) -> PreparedTxnState:
        self._slot = lane_of(kafka_id)
        return await on_slot(self._slot, super().take_over(kafka_id))

    async def end_of(self, *given: Any, is_over: bool = False) -> Any:
        return await on_slot(self._slot, super().end_of(*given, is_over=is_over))

    async def records_of(self, *given: Any) -> Any:
        return await on_slot(self._slot, super().records_of(*given))

    async def repair_of(self, *given: Any) -> Any:
        return await on_slot(self._slot, super().repair_of(*given))

    async def complete(self, row: PreparedTxnState, *, is_over: bool = False) -> None:
        await on_slot(self._slot, super().complete(row, is_over=is_over))

    async def own(self) -> None:
        await on_slot(self._slot, super().own())

    async def is_current(self) -> bool:
        return await on_slot(self._slot, super().is_current())

    async def send(
        self, entries: Iterable[BufferedRecord | BufferedOffsets], after_each: Any, *, any_size: bool = False
    ) -> None:
        await on_slot(self._slot, super().send(entries, after_each, any_size=any_size))

    async def prepare(self) -> PreparedTxnState:
        return await on_slot(self._slot, super().prepare())

    async def commit(self) -> None:
        await on_slot(self._slot, super().commit())

    async def abort(self) -> None:
        await on_slot(self._slot, super().abort())

    async def give_up(self) -> None:
        await on_slot(self._slot, super().give_up())


class PooledTransaction(CheckedTransaction):
    """A database transaction that may lock the rows of several ids, one after the other."""

    _slot = 0

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        if timeout_ms is None or timeout_ms > _LONG_MS:
            return await self._of(transactional_id, super().lock(transactional_id, timeout_ms=timeout_ms))
        found = await self._of(transactional_id, self._ask(LockInTime(self._number)))
        if not found:
            raise stayed_locked(transactional_id, timeout_ms)
        return state_in(transactional_id, found[0])

    async def read(self, transactional_id: str) -> PreparedTxnState:
        return await self._of(transactional_id, super().read(transactional_id))

    async def read_manifest(self, transactional_id: str) -> str:
        return await self._of(transactional_id, super().read_manifest(transactional_id))

    async def write(self, transactional_id: str, **given: Any) -> None:
        if self._by_commit:
            self._slot = lane_of(transactional_id)  # of the message of COMMIT
        await self._of(transactional_id, super().write(transactional_id, **given))

    async def commit(self) -> None:
        await on_slot(self._slot, super().commit())

    @staticmethod
    async def _of(transactional_id: str, steps: Coroutine[Any, Any, ResultT]) -> ResultT:
        return await on_slot(lane_of(transactional_id), steps)


class PooledDatabase(CheckedDatabase):
    """A database with the rows of several ids."""

    async def begin(self) -> CheckedTransaction:
        self._begun += 1
        await ask(Begin(self._begun))
        return PooledTransaction(self._begun, by_commit=self._by_commit, stored_blocks=NO_STORED_BLOCKS)


# ---- the process ----------------------------------------------------------------------------------------------------


class _NoBell:
    def ring(self) -> None:
        pass

    async def wait(self, timeout_s: float | None) -> None:
        pass


class _NoBackground:
    async def join(self, timeout_s: float) -> None:
        pass


class OneThread:
    """A `Runtime` whose background acts only on order."""

    def bell(self) -> Any:
        return _NoBell()

    def new_queue(self) -> IdUsers:
        return IdUsers()

    def spawn(self, name: str, steps: Steps, on_end: Any = None) -> Any:
        return _NoBackground()


class CheckedWaiting:
    """`Waiting` for the world."""

    def __init__(self, profile: Profile, kind: type[CheckedKafka]) -> None:
        self._profile = profile
        self._kind = kind
        self.uninterrupted = direct

    def new_kafka(self, settings: Mapping[str, Any]) -> CheckedKafka:
        return self._kind(self._profile)

    async def sleep(self, seconds: float) -> None:
        pass


class CheckedSettings(PoolSettings):
    """The settings of a pool whose callers wait for ever, and that looks at the clock of its process alone."""

    def __init__(self, clock: Clock, **settings: Any) -> None:
        super().__init__(PREFIX, {**_SETTINGS, **settings})
        self._clock = clock

    def _new_coordinator(self, *args: Any, **kwargs: Any) -> DualWriteCoordinator:
        timed = partial(DualWriteCoordinator, clock_s=self._clock.monotonic)
        with mock.patch.object(id_settings, "DualWriteCoordinator", timed):
            return super()._new_coordinator(*args, **kwargs)


class PooledProcess:
    """One process with a pool of at most one writer at a time, as an application has it."""

    def __init__(
        self,
        told: list[Said],
        clock: Clock,
        database: CheckedDatabase,
        waiting: Any,
        outbox_leases: CheckedLeases | None = None,
        **settings: Any,
    ) -> None:
        """`outbox_leases`: those of the pool's outbox, if it has one."""
        self._told = told
        self.clock: Final = clock
        self._database = database
        self._settings: Final = CheckedSettings(clock, **settings)
        self._availability = Availability(None, NoWatch(), clock.monotonic)
        common: tuple[Any, Any, Any] = database, waiting, self._availability
        leases = CheckedLeases()
        runtime: Any = OneThread()
        self._pool: Final = PoolCoordinator(
            self._settings,
            leases=leases,
            new_coordinator=self._settings.coordinator_maker(*common, leases),
            runtime=runtime,
            availability=self._availability,
            new_outbox=None
            if outbox_leases is None
            else lambda counts: self._settings.new_outbox(*common, outbox_leases, runtime, counts),
        )

    async def write(self, value: bytes) -> None:
        """Carry out one dual write, and note its caller's result: the outcome, None for unknown."""
        progress = None
        await self._pass_a_moment()
        block = self._pool.new_use()
        try:
            block.enter()
            await block.get_ready()
            database = await self._database.begin()
            records = RecordBuffer()
            progress = DualWriteProgress(database, records, direct)
            records.send(TOPIC, value, timestamp_ms=1)
            try:
                await self._change(database, value)
            except DatabaseGone:
                await block.roll_back(progress)
                raise
            await block.commit(progress)
            self._told.append((value, RETURNED))
        except (DualWriteError, DatabaseGone) as error:
            self._told.append((value, "raised", type(error).__name__))
        finally:
            block.leave()
        if progress is not None:
            await self._find_out(progress)
            self._told.append((value, None if progress.outcome is None else progress.outcome.name))

    async def _change(self, database: Any, value: bytes) -> None:
        await database.insert(value)

    async def _find_out(self, progress: DualWriteProgress) -> None:
        """Let the background look for an outcome that is not known."""

    async def _pass_a_moment(self) -> None:
        if self._availability.is_away and await ask(Moment(until_back=True)):
            self.clock.pass_s(A_MOMENT_S)
            self._availability.note_present()

    async def recover(self) -> bool:
        """Resolve the open transactions of all slots. Return whether that succeeded, and note it."""
        is_done = await self._resolves()
        if is_done:
            self._told.append(RECOVERED)
        return is_done

    async def _resolves(self) -> bool:
        try:
            await self._pool.maintenance.recover()
        except (DualWriteError, DatabaseGone) as error:
            self._told.append(("recover", type(error).__name__))
            return False
        return True

    async def close(self) -> None:
        """Close the pool, as an application that ends does."""
        await self._pool.close(0)

    async def in_foreground(self, steps: Coroutine[Any, Any, None]) -> None:
        """Carry out steps of the application, while the background follows its orders."""
        await self.clock.told(_driven(steps, self._background))

    async def _background(self, interrupt: Interrupt) -> None:
        keeping = self._pool.maintenance
        try:
            if interrupt is Interrupt.RENEW:
                await keeping.renew()
            else:
                for error in (await keeping.resolve_once())[0]:
                    raise error
        except (DualWriteError, DatabaseGone) as error:
            self._told.append(("background", type(error).__name__))


def _process(profile: Profile, told: list[Said], *, by_commit: bool) -> PooledProcess:
    database = PooledDatabase(by_commit=by_commit, fails_over=False)
    return PooledProcess(told, Clock(maintenance), database, CheckedWaiting(profile, PooledKafka))


def pool_writes(profile: Profile, values: Sequence[bytes], *, by_commit: bool = False) -> Program:
    """Return the program of a process that carries out dual writes by a pool, and closes it."""

    async def program(told: list[Said]) -> None:
        process = _process(profile, told, by_commit=by_commit)
        for value in values:
            await process.in_foreground(process.write(value))
        await process.clock.told(_driven(process.close()))  # the background has ended

    return program


def pool_recovers(profile: Profile, *, tries: int) -> Program:
    """Return the program of processes that recover every slot, write once more, and recover that if necessary."""

    async def recovered(told: list[Said]) -> PooledProcess | None:
        for _ in range(tries):
            process = _process(profile, told, by_commit=False)
            if await process.clock.told(process.recover()):
                return process
            await process.clock.told(process.close())
        return None

    async def program(told: list[Said]) -> None:
        process = await recovered(told)
        if process is not None:
            await process.clock.told(process.write(LAST_WRITE))
            await process.clock.told(process.close())
            await recovered(told)

    return program
