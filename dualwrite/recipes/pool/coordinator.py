"""Dual writes under a pool of transactional ids, step by step; one implementation for threads and asyncio.

A block takes a slot at its end, when its records are about to be sent, or at its start if the isolation level requires
it. From then on `core/coordinator.py` carries out the dual write, and its row lock and epoch make it safe. Leases
(`core/leases.py`) only keep processes out of each other's way. If another process breaks a lease, the process that lost
the slot is fenced before it can decide, and its buffered records are sent under another slot.

A child of `os.fork()` gets a coordinator, slots, leases and a background of its own (`ThreadWriter`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from dualwrite.errors import (
    DualWriteError,
    IllegalStateError,
    KafkaUnreachableError,
    PoolTimeoutError,
    StoredBlocksError,
    TransactionHangsError,
)
from dualwrite.guarded import pass_on_signal
from dualwrite.monkey_patches import assert_unpatched
from dualwrite.recipes.core.availability import Availability
from dualwrite.recipes.core.coordinator import is_away
from dualwrite.recipes.core.dual_write import (
    DualWriteProgress,
    Resolution,
    commit_database_alone,
    flush_block,
    found_in,
    roll_back_database,
)
from dualwrite.recipes.core.leases import LeaseLostError, Leases
from dualwrite.recipes.core.metrics import Counted, count, now_s, pools, record_wait
from dualwrite.recipes.core.turns import IdUse
from dualwrite.recipes.pool.maintenance import PoolMaintenance
from dualwrite.recipes.pool.outbox_publisher import OutboxPublisher
from dualwrite.recipes.pool.runtime import Runtime
from dualwrite.recipes.pool.settings import NewCoordinator, PoolSettings
from dualwrite.recipes.pool.slots import PooledSlot, SlotRegistry, Turn
from dualwrite.recipes.pool.status import Counts, PoolStatus, described

_log = logging.getLogger(__name__)

_MOST_SLOTS_TRIED: Final = 5
"""For one dual write. If it loses that many slots in a row, the rival will find it under any other slot too."""

_MOST_RACES: Final = 100
"""How many attempts to lease a slot a process may lose to others in a row."""


_OF_THE_PARENT: Final = (
    "this dual write belongs to the process that forked; nothing was written here: leave its block in the parent, and "
    "begin new blocks in the child"
)


class PooledBlock:
    """One block of the application in a pool, and its slot, if it has one."""

    __slots__ = ("_pool", "_turn")

    needs_slot_early = True
    """Whether `take_slot` must be called before the transaction takes its snapshot."""
    _may_divert = False

    def __init__(self, pool: PoolCoordinator) -> None:
        self._pool = pool
        self._turn = Turn()

    @property
    def slot(self) -> PooledSlot | None:
        return self._turn.taken

    def enter(self) -> None:
        """Begin the block. The caller must `leave` even if this raises, as it does after `close`: IllegalStateError."""
        self._pool.registry.enter(self)

    def leave(self) -> None:
        """End the block, and release its slot for others; harmless when repeated."""
        pool = self._pool
        if pool.is_of_this_process:
            pool.maintenance.end_turn(self._turn)
            pool.end_block(self)

    async def get_ready(self) -> None:
        """Get ready before the block's transaction begins. Raises as `take_slot` does."""
        try:
            await self._get_ready()
        except DualWriteError as error:
            self._pool.counts.judge(error)
            raise

    async def _get_ready(self) -> None:
        pool = self._pool
        if pool.availability.away is not None:
            pool.assert_present()
        if pool.connect_first is not None:
            await pool.connect()
        pool.maintenance.start()  # not earlier: the background's engine must not be the first to connect
        if not pool.leases_inside_blocks:
            await self.take_slot()

    async def take_slot(self) -> None:
        """Take a slot, unless the block has one. Raises PoolTimeoutError, KafkaUnreachableError, database errors."""
        pool, turn = self._pool, self._turn
        if turn.taken is None:
            if pool.registry.take_at_once(turn):
                record_wait(pool.prefix, 0.0)
                return
            since_s = now_s()
            try:
                await pool.wait_for_turn(turn)
                await pool.take_slot(turn)
            finally:
                record_wait(pool.prefix, now_s() - since_s)

    async def commit(self, write: DualWriteProgress) -> None:
        """Commit both sides, or roll back both and raise the reason."""
        try:
            try:
                if not self._pool.is_of_this_process:
                    raise IllegalStateError(_OF_THE_PARENT)
                carries_records = await flush_block(write)
                if carries_records:
                    await self._prepare_to_commit(write)
            except BaseException:
                await roll_back_database(write)
                raise
            if carries_records:
                await self._commit_records(write)
            else:
                await commit_database_alone(write)
        except DualWriteError as error:
            self._pool.counts.judge(error)
            raise
        if write.transactional_id is not None:  # it had records, and so has passed every check
            self._pool.counts.refusal = None

    async def _prepare_to_commit(self, write: DualWriteProgress) -> None:
        """Do what comes before the commit of a block with records. If it raises, the block is rolled back."""
        if self._pool.availability.away is not None:
            self._pool.assert_present()
        await self.take_slot()

    async def roll_back(self, write: DualWriteProgress) -> None:
        """Roll the database back; Kafka has received nothing yet."""
        await roll_back_database(write)

    async def _commit_records(self, write: DualWriteProgress) -> DualWriteError | None:
        """Commit a block with records under its slot or another one, or roll it back and raise the reason.

        If the block may go to an outbox, return the error by which Kafka turned out to be away; the database
        transaction is open then.
        """
        diverts = self._may_divert and not write.records.has_offsets
        tried = 0
        while True:
            slot, use = self._turn.taken, IdUse()
            assert slot is not None, "the slot was taken, or exchanged for another one"
            try:
                slot.coordinator.acquire(use)
                why_not = await slot.coordinator.commit_or_let_go(write, diverts=diverts)
            finally:
                try:
                    slot.coordinator.release(use)
                except BaseException:  # an interruption
                    slot.coordinator.release(use)
                    raise
            if why_not is None or is_away(why_not):
                return why_not
            tried += 1
            try:
                why_not.add_note(f"{tried} slots of pool {self._pool.prefix!r} were tried, and nothing was written.")
                if tried == _MOST_SLOTS_TRIED:
                    raise why_not
                await self._exchange(slot, why_not)
            except BaseException as error:
                try:
                    if diverts and isinstance(error, KafkaUnreachableError):
                        pass_on_signal(error)
                        return error
                    raise
                except BaseException:
                    await roll_back_database(write)
                    raise

    async def _exchange(self, lost: PooledSlot, why: Exception) -> None:
        """Take another slot after the block lost its own before the decision."""
        _log.warning(
            "transactional id %s cannot carry a dual write (%s); nothing was decided, and the dual write continues "
            "under another id",
            lost.coordinator.transactional_id,
            why,
        )
        await self._pool.replace(lost, why, self._turn)


class OutboxBlock(PooledBlock):
    """One block of a pool with an outbox, which needs no slot."""

    __slots__ = ("_outbox",)

    needs_slot_early = False

    def __init__(self, pool: PoolCoordinator, outbox: OutboxPublisher) -> None:
        super().__init__(pool)
        self._outbox = outbox

    async def _get_ready(self) -> None:
        """Get ready before the block's transaction begins. Raises StoreFullError."""
        if self._pool.connect_first is not None:
            await self._pool.connect()
        await self._outbox.get_ready()
        self._pool.start()

    async def take_slot(self) -> None:
        """Do nothing: the block does not use Kafka."""

    def leave(self) -> None:
        if self._pool.is_of_this_process:
            self._pool.end_block(self)

    async def _prepare_to_commit(self, write: DualWriteProgress) -> None:
        await self._outbox.writes.add(write)

    async def _commit_records(self, write: DualWriteProgress) -> None:
        await self._outbox.writes.decide(write)


class DivertedBlock(PooledBlock):
    """One block of a pool that goes to an outbox while Kafka is away."""

    __slots__ = ("_is_diverted", "_outbox")

    _may_divert = True

    def __init__(self, pool: PoolCoordinator, outbox: OutboxPublisher) -> None:
        super().__init__(pool)
        self._outbox = outbox
        self._is_diverted = False

    async def _get_ready(self) -> None:
        pool = self._pool
        if pool.connect_first is not None:
            await pool.connect()
        await self._outbox.prepare()
        pool.start()
        if not pool.leases_inside_blocks:
            await self.take_slot()

    async def take_slot(self) -> None:
        """Take a slot, unless the block has one, or Kafka is away."""
        try:
            await super().take_slot()
        except KafkaUnreachableError as error:
            pass_on_signal(error)
            self._pool.maintenance.end_turn(self._turn)  # at its end the block may need a new one

    async def _prepare_to_commit(self, write: DualWriteProgress) -> None:
        self._is_diverted = await self._goes_to_outbox(write)

    async def _commit_records(self, write: DualWriteProgress) -> None:
        """Commit both sides, or the database with the records in it; or roll back both and raise the reason."""
        if self._is_diverted:
            await self._divert(write, None)
            return
        why = await super()._commit_records(write)
        if why is not None:
            await self._divert(write, why)

    async def _goes_to_outbox(self, write: DualWriteProgress) -> bool:
        """Return whether the block goes to the outbox; else it has a slot."""
        pool = self._pool
        if write.records.has_offsets:  # their group could go on without the records
            if await self._outbox.writes.follows_diverted(write):
                raise pool.blocks_wait()
            await super().take_slot()
            return False
        if pool.availability.away is not None or await self._outbox.writes.follows_diverted(write):
            return True
        if self.slot is None and pool.leases_inside_blocks:
            await self.take_slot()
        return self.slot is None

    async def _divert(self, write: DualWriteProgress, why: DualWriteError | None) -> None:
        writes = self._outbox.writes
        try:
            await writes.divert(write, why)
        except BaseException:
            await roll_back_database(write)
            raise
        await writes.decide(write)


class PoolCoordinator:
    """Carries out dual writes under the slots of one prefix, at most `max_writers` at a time."""

    def __init__(
        self,
        settings: PoolSettings,
        *,
        leases: Leases,
        new_coordinator: NewCoordinator,
        runtime: Runtime,
        availability: Availability,
        leases_inside_blocks: bool = True,
        connect_first: Callable[[], Awaitable[None]] | None = None,
        new_outbox: Callable[[Counts], OutboxPublisher] | None = None,
    ) -> None:
        """Start with no slots. Slots are leased when blocks need them; blocks of an outbox never do.

        `leases_inside_blocks`: whether a lease can be taken while a block of this process has uncommitted changes.
        `connect_first` is awaited before the first lease.
        """
        self.prefix: Final = settings.prefix
        self.leases_inside_blocks: Final = leases_inside_blocks
        self.connect_first = connect_first
        self._max_writers = settings.max_writers
        self._acquire_timeout_ms = settings.acquire_timeout_ms
        self._leases = leases
        self._new_coordinator = new_coordinator
        self._runtime = runtime
        self.availability: Final = availability
        self.registry: Final = SlotRegistry(settings.max_writers)
        self.counts: Final = Counts()
        self._tally = settings.tally
        self._last_block_bell = runtime.bell()
        self.is_of_this_process = True
        self.outbox: Final = None if new_outbox is None else new_outbox(self.counts)
        self.maintenance: Final = PoolMaintenance(
            settings.prefix,
            registry=self.registry,
            counts=self.counts,
            leases=leases,
            lease_ms=settings.lease_ms,
            new_coordinator=new_coordinator,
            runtime=runtime,
            availability=availability,
            outbox=self.outbox,
            needs_slots=self.outbox is None or settings.diverts,
        )
        self.leases_at_commit: Final = settings.diverts
        availability.on_change = self._on_kafka_change
        pools.add(self)

    def status(self) -> PoolStatus:
        counts, places, away, outbox = self.counts, self.registry.places(), self.availability.away, self.outbox
        refused = None if outbox is None else outbox.refused
        backlog = None if outbox is None else outbox.writes.backlog
        problem = None if outbox is None else outbox.last_error
        return PoolStatus(
            max_writers=self._max_writers,
            in_use=places.in_use,
            idle=places.idle,
            waiting=places.waiting,
            set_aside=places.set_aside,
            unrecovered=self.maintenance.unrecovered,
            leased_total=counts.leased,
            lost_total=counts.lost,
            moved_total=counts.moved,
            recovered_total=counts.recovered,
            timeouts_total=counts.timeouts,
            background_failures_total=counts.background_failures,
            last_background_error=counts.last_background_error or (None if problem is None else described(problem)),
            is_diverted=outbox is not None and outbox.writes.is_diverted,
            refused=places.refused + self.maintenance.refused_of_dead + (() if refused is None else (refused,)),
            kafka_away_since_s=None if away is None else away.since_s,
            kafka_problem=None if away is None else away.problem,
            no_manifest_total=self._tally.no_manifest,
            unproven_total=self._tally.unproven,
            publishes_outbox=outbox is not None and outbox.publishes,
            outbox_blocks=0 if backlog is None else backlog.blocks,
            refusal=counts.refusal,
            needs_kafka=outbox is None,
        )

    # ---- blocks ---------------------------------------------------------------------------------------------

    def new_use(self) -> PooledBlock:
        if self.outbox is None:
            return PooledBlock(self)
        return (DivertedBlock if self.leases_at_commit else OutboxBlock)(self, self.outbox)

    def start(self) -> None:
        self.maintenance.start()
        if self.outbox is not None:
            self.outbox.start()

    def end_block(self, block: object) -> None:
        """Unregister a block; `close` may be waiting for the last one. Harmless when repeated."""
        if self.registry.leave(block):
            self._last_block_bell.ring()

    async def commit_in_turn(self, write: DualWriteProgress) -> None:
        """Commit the dual write of a Session, which has no block of the pool."""
        block = self.new_use()
        try:
            block.enter()
            self.start()
            await block.commit(write)
        finally:
            try:
                block.leave()
            except BaseException:  # an interruption
                block.leave()
                raise

    async def get_ready_for_sessions(self) -> None:
        """Connect, and prepare an outbox, before a Session begins a transaction. Costs nothing when repeated."""
        assert_unpatched()
        await self.connect()
        if self.outbox is not None:
            await (self.outbox.prepare() if self.leases_at_commit else self.outbox.get_ready())

    async def connect(self) -> None:
        connect_first = self.connect_first  # another thread may set it to None meanwhile
        if connect_first is not None:
            await connect_first()
            self.connect_first = None

    def leave_to_parent(self) -> None:
        """Abandon everything in a forked child, where locks may be held by threads that it lacks."""
        self.is_of_this_process = False

    # ---- Kafka ----------------------------------------------------------------------------------------------

    def assert_present(self) -> None:
        if self.availability.away is not None:
            raise self.availability.refusal()

    def blocks_wait(self) -> StoredBlocksError:
        return StoredBlocksError(
            f"the outbox of pool {self.prefix!r} holds blocks that could not reach Kafka, and that must be published "
            "before any later one, and consumed offsets cannot go there; neither side was changed: repeat the block "
            "when they are published"
        )

    def _on_kafka_change(self) -> None:
        """Refuse the blocks that wait for a slot while Kafka is away; resolve the slots put aside when it is back."""
        if self.is_of_this_process:
            if self.availability.is_away:
                self.registry.wake_waiting()
            self.maintenance.wake()
            if self.outbox is not None:
                self.outbox.wake()

    # ---- a slot ---------------------------------------------------------------------------------------------

    async def wait_for_turn(self, turn: Turn) -> None:
        """Wait until the block may use one more slot. Raises PoolTimeoutError, KafkaUnreachableError."""
        bell = self._runtime.bell()
        deadline_s = time.monotonic() + self._acquire_timeout_ms / 1000
        turn.wake = bell.ring
        self.registry.request_turn(turn)
        while not turn.granted and (remaining_s := deadline_s - time.monotonic()) > 0:
            self.assert_present()
            await bell.wait(remaining_s)
        if not turn.granted:
            self.registry.end_turn(turn)
            self.counts.timeouts += 1
            count(Counted.POOL_TIMEOUTS, prefix=self.prefix)
            raise self._timeout()

    def _timeout(self) -> PoolTimeoutError:
        places = self.registry.places()
        aside = f", and {len(places.set_aside)} are being resolved" if places.set_aside else ""
        away = self.availability.away
        kafka = f"; {away.sentence(time.time())}" if away is not None else ""
        background = self.counts.last_background_error
        why = "Kafka keeps them from being resolved" if self.counts.kafka_failed else "last error in the background"
        return PoolTimeoutError(
            f"no transactional id of pool {self.prefix!r} became free within {self._acquire_timeout_ms} ms: "
            f"{places.in_use} of {self._max_writers} carry a dual write{aside}{kafka}; "
            f"{places.waiting} more blocks are waiting; nothing was written: try again later, raise "
            "max_writers or acquire_timeout_ms, or make blocks shorter"
            + (f" ({why}: {background})" if background else "")
        )

    async def replace(self, lost: PooledSlot, why: Exception, turn: Turn) -> None:
        """Take another slot for a block that lost its own before the decision, in the same turn."""
        self.counts.moved += 1
        if isinstance(why, LeaseLostError):
            self.maintenance.note_lost(lost)
        elif isinstance(why, TransactionHangsError):
            turn.unfit.add(lost)
        self.maintenance.put_back(lost, keep_turn=True)
        if not self.leases_inside_blocks:
            if not self.registry.take_idle(turn):
                raise why
            return
        await self.maintenance.renew()  # the process that took this slot may also have taken slots that are idle here
        await self.take_slot(turn)

    async def take_slot(self, turn: Turn) -> None:
        """Take an idle slot, or lease one, with a turn."""
        if not self.registry.take_idle(turn):
            self.registry.take_new(await self._lease_one(turn), turn)

    async def _lease_one(self, turn: Turn) -> PooledSlot:
        """Lease a free slot, else a new one. The background frees those of dead processes by recovering them."""
        for _ in range(_MOST_RACES):
            leases = await self._leases.every_lease()
            for lease in leases:
                claim = partial(self._leases.claim, lease)
                if lease.free and await self.maintenance.claims(lease.slot, claim, turn):
                    return await self._prepared(lease.slot, clean=True)
            new = _lowest_missing({lease.slot for lease in leases} | self.registry.numbers())
            if await self.maintenance.claims(new, partial(self._leases.add, new), turn):
                return await self._prepared(new, clean=False)  # the table may have been emptied
        raise self._timeout()

    async def _prepared(self, number: int, *, clean: bool) -> PooledSlot:
        """Return a slot that was leased just now. `clean`: nothing is open under its id."""
        coordinator = self._new_coordinator(number)
        try:
            await coordinator.get_ready()
        except BaseException:
            await self.maintenance.end_lease(number, clean=clean)
            raise
        self.counts.leased += 1
        return PooledSlot(number, coordinator)

    # ---- the pool -------------------------------------------------------------------------------------------

    async def recover(self) -> list[Resolution]:
        """Complete the transactions that this process, or processes with expired leases, left open. Return them."""
        assert_unpatched()
        await self.connect()
        visit = object()
        try:
            self.registry.enter(visit)
            found = await self._recover()
        finally:
            try:
                self.end_block(visit)
            except BaseException:  # an interruption
                self.end_block(visit)
                raise
        return found_in(*found)

    async def _recover(self) -> list[Resolution]:
        try:
            found = await self.maintenance.recover()
        finally:
            self.maintenance.start(swept=True)
        return found if self.outbox is None else found + await self.outbox.recover()

    def forget(self) -> None:
        """Stop the background of a pool that was garbage-collected without `close`; its leases are left to expire."""
        if self.is_of_this_process:
            pools.forget(self)  # its background has references to it until that has ended
            self.maintenance.begin_no_more()
            if self.outbox is not None:
                self.outbox.begin_no_more()

    async def close(self, timeout_s: float) -> None:
        """Accept no new blocks, wait for running ones, make a last attempt at ids in doubt, and release all ids.

        Ids that are not resolved within `timeout_s` are left to other processes.
        """
        try:
            await self._close(timeout_s)
        finally:
            pools.forget(self)

    async def _close(self, timeout_s: float) -> None:
        self.registry.close()
        deadline_s = time.monotonic() + timeout_s
        while self.registry.blocks and (remaining_s := deadline_s - time.monotonic()) > 0:
            await self._last_block_bell.wait(remaining_s)
        if self.registry.blocks:
            _log.warning(
                "pool %s is closed while %d blocks run; they may still end, and their slots become usable again when "
                "their leases expire",
                self.prefix,
                self.registry.blocks,
            )
        if self.outbox is not None:
            await self.outbox.stop()
        await self.maintenance.stop(deadline_s)
        self.availability.close()
        await self.maintenance.leave_in_hand()
        await self.maintenance.give_up_all()


def _lowest_missing(taken: set[int]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)
