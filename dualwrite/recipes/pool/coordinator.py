"""Dual writes under a pool of transactional ids, step by step; once for threads and for tasks.

A block takes a slot at its end, when its records are about to be sent; where the isolation level asks for it, at its
start. From then on it is the dual write of `dual_writes.py`, with its row lock and its epoch, which are what makes it
safe. Leases (`leases.py`) only keep processes out of each other's way. Where one is broken, whoever lost the slot is
fenced before it could decide, and its records, which are still here, go out under another slot.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from dualwrite.errors import IllegalStateError, PoolTimeoutError
from dualwrite.recipes.core import pool_gauges
from dualwrite.recipes.core.coordinator import (
    DualWrite,
    Resolution,
    commit_database_alone,
    roll_back_database,
    settle,
)
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.telemetry import SlotWait, count_timeout
from dualwrite.recipes.pool.leases import Lease, Leases, transactional_id_of
from dualwrite.recipes.pool.maintenance import PoolMaintenance
from dualwrite.recipes.pool.runtime import Runtime
from dualwrite.recipes.pool.settings import NewWrites, PoolSettings
from dualwrite.recipes.pool.slots import PooledSlot, SlotRegistry
from dualwrite.recipes.pool.status import Counts, PoolStatus

_log = logging.getLogger(__name__)

_MOST_SLOTS_TRIED: Final = 5
"""By one dual write. Who loses that many in a row has a rival that no other slot would hide from."""


_MOST_RACES: Final = 100
"""For a lease, that a process may lose to others in a row."""


@dataclass(slots=True)
class Block:
    """One block of the application, and the slot that it has, if any."""

    slot: PooledSlot | None = None


class _BlockUse:
    """The use of a pool by one block, for as long as a `with` lasts; each dual write is one."""

    __slots__ = ("_block", "_writes")

    def __init__(self, writes: PoolCoordinator) -> None:
        self._writes = writes
        self._block = Block()

    def __enter__(self) -> Block:
        self._writes._enter()
        return self._block

    def __exit__(self, *raised: object) -> None:
        self._writes._leave(self._block)


class PoolCoordinator:
    """Carries out dual writes under the slots of one prefix, as many at a time as there may be."""

    def __init__(
        self,
        settings: PoolSettings,
        *,
        leases: Leases,
        new_writes: NewWrites,
        runtime: Runtime,
        leases_inside_blocks: bool = True,
    ) -> None:
        """`leases_inside_blocks`: whether a lease can be taken while a block of this process has written something."""
        self.prefix: Final = settings.prefix
        self._max_writers = settings.max_writers
        self._acquire_timeout_ms = settings.acquire_timeout_ms
        self._leases = leases
        self._new_writes = new_writes
        self._runtime = runtime
        self._leases_inside_blocks = leases_inside_blocks
        self._shelf = SlotRegistry(settings.max_writers)
        self._counts = Counts()
        self._last_block_bell = runtime.bell()
        self._is_the_parents = False
        self._keeper = PoolMaintenance(
            settings.prefix,
            shelf=self._shelf,
            counts=self._counts,
            leases=leases,
            lease_ms=settings.lease_ms,
            new_writes=new_writes,
            runtime=runtime,
        )
        pool_gauges.observe(self)

    def status(self) -> PoolStatus:
        """What goes on now, and the sums since the pool was made."""
        return self._counts.status(self._max_writers, self._shelf.places())

    # ---- one block ------------------------------------------------------------------------------------------

    def block(self) -> AbstractContextManager[Block]:
        """Around a block of the application. Raises IllegalStateError after `close`."""
        return _BlockUse(self)

    def _enter(self) -> None:
        self._shelf.enter()
        try:
            self._keeper.start()
        except BaseException:
            self._leave(Block())
            raise

    def _leave(self, block: Block) -> None:
        if self._is_the_parents:
            return
        if block.slot is not None:
            self._keeper.put_back(block.slot)
        self._shelf.leave()
        self._last_block_bell.ring()

    def leave_to_parent(self) -> None:
        """In a forked child: slots, leases and blocks are the parent's; its locks may be held by threads that are not
        here."""
        self._is_the_parents = True

    @property
    def is_of_this_process(self) -> bool:
        return not self._is_the_parents

    def assert_of_this_process(self) -> None:
        """Raise IllegalStateError in a forked child, for a block that its parent had begun."""
        if self._is_the_parents:
            raise IllegalStateError(
                "this dual write belongs to the process that forked; nothing was written here: leave its block in the "
                "parent, and begin blocks of the child's own"
            )

    async def take_slot(self, block: Block) -> None:
        """Raises PoolTimeoutError, and what the database says when a slot is leased."""
        if block.slot is None:
            waiting = SlotWait(self.prefix)
            try:
                await self._wait_for_turn()
                block.slot = await self._slot_for_turn()
            finally:
                waiting.over()

    async def commit(self, block: Block, write: DualWrite) -> None:
        """Commit both sides, or roll back both and raise why."""
        try:
            carries_records = await settle(write)
            if carries_records:
                await self.take_slot(block)
        except BaseException:
            await roll_back_database(write)
            raise
        if carries_records:
            await self._carry_out(block, write)
        else:
            await commit_database_alone(write)

    async def _carry_out(self, block: Block, write: DualWrite) -> None:
        tried = 0
        while True:
            slot = block.slot
            assert slot is not None, "it was taken, or exchanged for another one"
            with slot.writes.exclusively():
                why_not = await slot.writes.commit_or_let_go(write)
            if why_not is None:
                return
            tried += 1
            try:
                why_not.add_note(f"{tried} slots of pool {self.prefix!r} were tried, and nothing was written.")
                if tried == _MOST_SLOTS_TRIED:
                    raise why_not
                await self._exchange(block, slot, why_not)
            except BaseException:
                await roll_back_database(write)
                raise

    async def _exchange(self, block: Block, lost: PooledSlot, why: Exception) -> None:
        """Another slot for a block that lost its own before the decision."""
        _log.warning(
            "transactional id %s cannot carry a dual write (%s); nothing was decided, and it goes on under another id",
            lost.writes.transactional_id,
            why,
        )
        self._counts.moved += 1
        block.slot = None
        self._keeper.put_back(lost, keep_turn=True)
        block.slot = await self._other_slot(why)

    # ---- a slot ---------------------------------------------------------------------------------------------

    async def _wait_for_turn(self) -> None:
        if self._shelf.has_turn_now():
            return
        bell = self._runtime.bell()
        deadline_s = time.monotonic() + self._acquire_timeout_ms / 1000
        turn = self._shelf.ask(bell.ring)
        try:
            while not turn.granted and (remaining_s := deadline_s - time.monotonic()) > 0:
                await bell.wait(remaining_s)
        except BaseException:
            if not self._shelf.withdraw(turn):
                self._shelf.give_back_turn()
            raise
        if not turn.granted and self._shelf.withdraw(turn):
            self._counts.timeouts += 1
            count_timeout(self.prefix)
            raise self._timeout()

    def _timeout(self) -> PoolTimeoutError:
        places = self._shelf.places()
        aside = f", and {len(places.set_aside)} are being resolved" if places.set_aside else ""
        background = self._counts.last_background_error
        return PoolTimeoutError(
            f"no transactional id of pool {self.prefix!r} became free within {self._acquire_timeout_ms} ms: "
            f"{places.in_use} of {self._max_writers} carry a dual write{aside}; {places.waiting} more blocks wait; "
            "nothing was written: try again later, raise max_writers or acquire_timeout_ms, or make blocks shorter"
            + (f" (the background says: {background})" if background else "")
        )

    async def _other_slot(self, why: Exception) -> PooledSlot:
        if not self._leases_inside_blocks:
            idle = self._shelf.take_idle()
            if idle is None:
                self._shelf.give_back_turn()
                raise why
            return idle
        try:
            await self._keeper.renew()  # whoever took the one may have taken others that are idle here
        except BaseException:
            self._shelf.give_back_turn()
            raise
        # not what dead processes left: that may wait for a row, which may be the lost one, whose lock this block holds
        return await self._slot_for_turn(recover_dead=False)

    async def _slot_for_turn(self, *, recover_dead: bool = True) -> PooledSlot:
        try:
            slot = self._shelf.take_idle(rather_new=True)
            if slot is None:
                slot = await self._lease_one(recover_dead=recover_dead)
                self._shelf.take_new(slot)
        except BaseException:
            self._shelf.give_back_turn()
            raise
        return slot

    async def _lease_one(self, *, recover_dead: bool) -> PooledSlot:
        """A slot that is free, else one of a dead process, once it is recovered, else a new one."""
        for _ in range(_MOST_RACES):
            leases = await self._leases.every_lease()
            for lease in leases:
                if lease.free and await self._leases.claim(lease):
                    return await self._prepared(lease.slot)
            if recover_dead and await self._keeper.free_one_of_the_dead(leases):
                continue
            new = _lowest_missing(leases)
            if await self._leases.add(new):
                return await self._prepared(new)
        raise self._timeout()

    async def _prepared(self, number: int) -> PooledSlot:
        writes = self._new_writes(transactional_id_of(self.prefix, number))
        try:
            await writes.get_ready()
        except BaseException:
            await self._leases.release(number)
            raise
        self._counts.leased += 1
        return PooledSlot(number, writes)

    # ---- the pool -------------------------------------------------------------------------------------------

    async def recover(self) -> list[Resolution]:
        """What was left open, by us or by processes whose leases are over, and what became of it."""
        self._shelf.enter()
        try:
            found = await self._keeper.recover()
        finally:
            self._keeper.start(swept=True)
            self._shelf.leave()
            self._last_block_bell.ring()
        return [resolution for resolution in found if resolution.outcome is not Outcome.NOTHING]

    def forget(self) -> None:
        """Nobody has the pool any more, and nobody closed it: its leases are left to expire."""
        if not self._is_the_parents:
            self._keeper.begin_no_more()

    async def close(self, timeout_s: float) -> None:
        """Begin nothing more, wait for the blocks that run, give everything back."""
        self._shelf.close()
        deadline_s = time.monotonic() + timeout_s
        while self._shelf.blocks and (remaining_s := deadline_s - time.monotonic()) > 0:
            await self._last_block_bell.wait(remaining_s)
        if self._shelf.blocks:
            _log.warning(
                "pool %s is closed while %d blocks run; they may end, and their slots are used again when the leases "
                "have expired",
                self.prefix,
                self._shelf.blocks,
            )
        await self._keeper.stop()
        await self._keeper.give_up_all()
        pool_gauges.forget(self)


def _lowest_missing(leases: list[Lease]) -> int:
    taken = {lease.slot for lease in leases}
    return next(number for number in range(len(taken) + 1) if number not in taken)
