"""The background of a pool: renews leases, and resolves slots in which a transaction may be open.

These are slots of this process, put aside by a block that could not finish, or slots of a process that is gone, whose
lease has expired or was deleted. Each is resolved by the row under its lock before it is used again. Failures are
logged, counted, and retried with increasing delays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

from dualwrite.errors import DualWriteError, KafkaError, KafkaUnreachableError
from dualwrite.guarded import pass_on_signal
from dualwrite.recipes.core.availability import Availability
from dualwrite.recipes.core.coordinator import SETTLE_MS, DualWriteCoordinator
from dualwrite.recipes.core.dual_write import Resolution, say_of_block
from dualwrite.recipes.core.leases import Lease, LeaseLostError, Leases, transactional_id_of
from dualwrite.recipes.core.refused import RefusedBlock
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.telemetry import telemetry_of
from dualwrite.recipes.core.waiting import NEED_A_PERSON, backoff_s, pause_after
from dualwrite.recipes.pool.outbox_publisher import OutboxPublisher
from dualwrite.recipes.pool.runtime import Loops, Runtime
from dualwrite.recipes.pool.settings import NewCoordinator
from dualwrite.recipes.pool.slots import Hand, PooledSlot, SlotRegistry, Turn
from dualwrite.recipes.pool.status import Counts, described, log_failure

_log = logging.getLogger(__name__)

_SECONDS_TO_STOP: Final = 5.0

_MOMENT_S: Final = 0.02
"""How long to wait before looking again whether another task of this process has a slot in hand."""


class PoolMaintenance:
    def __init__(
        self,
        prefix: str,
        *,
        registry: SlotRegistry,
        counts: Counts,
        leases: Leases,
        lease_ms: int,
        new_coordinator: NewCoordinator,
        runtime: Runtime,
        availability: Availability,
        outbox: OutboxPublisher | None,
        needs_slots: bool,
    ) -> None:
        """Renew the lease of `outbox`, too. It, and an id if blocks have `needs_slots`, are tried after a refusal."""
        self._prefix = prefix
        self._registry = registry
        self._counts = counts
        self._leases = leases
        self._heartbeat_s = lease_ms / 3000
        self._new_coordinator = new_coordinator
        self._runtime = runtime
        self._availability = availability
        self._outbox = outbox
        self._needs_slots = needs_slots
        self._heartbeat_bell = runtime.bell()
        self._resolver_bell = runtime.bell()
        self._heartbeat, self._resolver = f"dualwrite-pool-{prefix}-leases", f"dualwrite-pool-{prefix}-resolver"
        self._loops = Loops(runtime, {self._heartbeat: self._renew_for_ever, self._resolver: self._resolve_for_ever})
        self._sweep_at_s = 0.0
        """When to sweep next, by the monotonic clock."""
        self._stopped = False
        self._renews = True
        self._last_attempt_until_s = 0.0
        """Until when the resolver may make a last attempt once it is stopped, by the monotonic clock."""
        self._is_left = False
        """Whether `close` has stopped waiting for the resolver, which begins no further attempt then."""
        self._left_in_hand = False
        """Whether `close` leaves the slots in the resolver's hand to the resolver."""
        self._has_swept = False
        """Whether a sweep has looked at the leases of dead processes, so that `close` owes them none."""
        self._dead_refused: dict[int, tuple[RefusedBlock | None, float]] = {}
        """By slot of a dead process whose recovery a person has to help: the block that Kafka refuses, if that is the
        cause, and when to try again, by the monotonic clock."""
        self._unrecovered: set[int] = set()
        """The slots of dead processes that the last sweep has found, and not recovered yet."""

    @property
    def unrecovered(self) -> tuple[str, ...]:
        return tuple(transactional_id_of(self._prefix, slot) for slot in sorted(self._unrecovered))

    @property
    def refused_of_dead(self) -> tuple[RefusedBlock, ...]:
        return tuple(refused for refused, _ in list(self._dead_refused.values()) if refused is not None)

    # ---- loops ----------------------------------------------------------------------------------------------

    def start(self, *, swept: bool = False) -> None:
        """Start the background, or restart it if it has ended; harmless when repeated.

        `swept`: dead processes' slots have just been recovered.
        """
        if self._loops.are_running or self._stopped:
            return
        if swept:
            self._sweep_at_s = time.monotonic() + self._heartbeat_s
        self._loops.start()

    def begin_no_more(self) -> None:
        self._stopped = True
        self._renews = False
        self._heartbeat_bell.ring()
        self._resolver_bell.ring()

    async def stop(self, deadline_s: float) -> None:
        """Have the resolver make one last attempt at the open slots, and the sweep that it has not made yet.

        The resolver is waited for until `deadline_s`, and no longer. The leases are renewed meanwhile, so that no other
        process begins to recover the same slots. Then the background ends.
        """
        self._last_attempt_until_s = deadline_s
        if not self._loops.were_started:
            self.begin_no_more()
            return
        self._stopped = True
        self._resolver_bell.ring()
        if not self._loops.are_running:  # the application has cancelled all tasks
            with suppress(RuntimeError):  # no thread can be started now
                self._loops.start()
        try:
            await self._loops.join(self._resolver, max(0.0, deadline_s - time.monotonic()))
        finally:
            self._is_left = True
            self.begin_no_more()
        await self._loops.join(self._heartbeat, _SECONDS_TO_STOP)

    async def _renew_for_ever(self) -> None:
        failures = 0
        while await self._goes_on_after(min(backoff_s(failures), self._heartbeat_s) if failures else self._heartbeat_s):
            if self._outbox is not None and self._outbox.goes_on:
                await self._outbox.renew()  # first: the other closes the producers of lost slots
            try:
                await self.renew()
                failures = 0
            except Exception as error:
                failures += 1
                self._failed(error)

    async def _goes_on_after(self, pause_s: float) -> bool:
        await self._heartbeat_bell.wait(pause_s)
        return self._renews

    def wake(self) -> None:
        self._resolver_bell.ring()

    async def _resolve_for_ever(self) -> None:
        failures = 0
        while not self._stopped:
            if self._registry.is_recovering:
                await self._resolver_bell.wait(self._heartbeat_s)
                continue
            if self._availability.is_away:
                await self._wait_for_kafka()
                self._sweep_at_s = 0.0
                continue
            sweeps = time.monotonic() >= self._sweep_at_s
            errors, sweep_errors = await self.resolve_once(due_s=time.monotonic(), sweeps=sweeps)
            if sweeps:
                failures = failures + 1 if sweep_errors else 0
                self._sweep_at_s = time.monotonic() + (backoff_s(failures) if failures else self._heartbeat_s)
                if not (errors or self._dead_refused or self._registry.places().set_aside):
                    self._counts.last_background_error = None
                    errors = await self._try_what_was_refused()
            for error in errors:
                self._failed(error)
            due_s = self._registry.next_due_s
            wake_at_s = self._sweep_at_s if due_s is None else min(self._sweep_at_s, due_s)
            await self._resolver_bell.wait(max(0.0, wake_at_s - time.monotonic()))
        if time.monotonic() < self._last_attempt_until_s:
            await self._attempt_last()
        if self._left_in_hand:
            await self.give_up_all()

    async def _attempt_last(self) -> None:
        """Make one attempt at each slot that is aside, and the first sweep, unless Kafka is known to be away."""
        errors: list[Exception] = []
        places = self._registry.places()
        if places.set_aside and not self._availability.is_away:
            try:
                await self.renew()  # so as not to fence a process that has taken a slot meanwhile
                errors += (await self._resolve_set_aside())[1]
            except Exception as error:
                errors.append(error)
        if self._needs_slots and not self._has_swept and self._has_time_left():
            errors += (await self._sweep())[1]
        for failure in errors:
            say_of_block(failure, repeat="the next owner of the id completes it")
            _log.warning(
                "pool %s: a last attempt before the end, at what is in doubt or was left by a dead process, failed: %s",
                self._prefix,
                str(failure).partition("\n")[0],
            )

    def _has_time_left(self) -> bool:
        """Return whether a resolver that is stopped may begin another attempt."""
        may_begin = not self._is_left and not self._availability.is_away
        return may_begin and time.monotonic() < self._last_attempt_until_s

    async def resolve_once(
        self, *, due_s: float | None = None, sweeps: bool = True
    ) -> tuple[list[Exception], list[Exception]]:
        """Resolve the slots that were put aside and are due, and with `sweeps` those of dead processes too.

        Return all errors, and those of the sweep. Gives way to a recovery.
        """
        errors = (await self._resolve_set_aside(due_s=due_s, gives_way=True))[1]
        sweep_errors: list[Exception] = []
        if sweeps:
            sweep_errors = (await self._sweep(gives_way=True))[1]
        return errors + sweep_errors, sweep_errors

    async def _try_what_was_refused(self) -> list[Exception]:
        """Try what blocks need, if one was refused, and clear the refusal if that succeeds. Return the error if not.

        A service that is not ready because of the refusal may get no requests, so perhaps no block will find out.
        """
        refusal = self._counts.refusal
        try:
            if refusal is not None and await self._lets_blocks_through() and self._counts.refusal is refusal:
                self._counts.refusal = None
        except Exception as error:
            pass_on_signal(error)
            return [error]
        return []

    async def _lets_blocks_through(self) -> bool:
        """Return whether the outbox is ready and an id was recovered, once idle ones are given back."""
        if self._outbox is not None:
            await self._outbox.prepare_again()
        if not self._needs_slots:
            return True
        await self._give_up_idle()
        free = [lease for lease in await self._leases.every_lease() if lease.free]
        return bool(free) and bool(await self._recover_unused(free[0], gives_way=True))

    async def _wait_for_kafka(self) -> None:
        """Leave everything as it is while Kafka is away: each attempt would lock a row to no effect."""
        self._availability.keep_watching()
        await self._resolver_bell.wait(self._heartbeat_s)
        if not self._availability.is_away:
            self._registry.make_due()
            self._dead_refused = {slot: (refused, 0.0) for slot, (refused, _) in list(self._dead_refused.items())}

    def _failed(self, error: Exception) -> None:
        log_failure(_log, f"pool {self._prefix}: background work", error, self._leases.errors)
        self._counts.background_failures += 1
        self._counts.last_background_error = described(error)
        self._counts.kafka_failed = isinstance(error, KafkaError)
        if isinstance(error, DualWriteError):
            self._counts.judge(error)

    # ---- leases ---------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Renew the leases of registered slots, and give up those that other processes have taken."""
        before = [slot for slot in self._registry.all_slots() if not slot.lease_lost]
        held = await self._leases.renew({slot.number for slot in before})
        lost = [slot for slot in before if slot.number not in held]
        for slot in lost:
            self.note_lost(slot)
        for slot in self._registry.remove_idle(lost):
            await slot.coordinator.close(settle_ms=0)

    def note_lost(self, slot: PooledSlot) -> None:
        """Note that another process has a slot, or has recovered it and given it back."""
        _log.warning("the lease of transactional id %s is lost", slot.coordinator.transactional_id)
        slot.lease_lost = True
        self._counts.lost += 1

    async def claims(
        self, number: int, claim: Callable[[], Awaitable[bool]], hand: Hand, *, gives_way: bool = False
    ) -> bool:
        """Reserve a slot and claim its lease, unless it `gives_way` to a recovery. Return whether it has both."""
        if not self._registry.reserve(number, hand, gives_way=gives_way):
            return False  # in another hand of this process, whose heartbeat may be late
        won = False
        try:
            won = await claim()
        finally:
            if not won:
                self._registry.unreserve(number)
        return won

    # ---- slots ----------------------------------------------------------------------------------------------

    def end_turn(self, turn: Turn) -> None:
        """Put the slot of a block back, and let others have its turn; harmless when repeated."""
        if (slot := turn.taken) is not None:
            self.put_back(slot)
        self._registry.let_go(turn)
        self._registry.end_turn(turn)

    def put_back(self, slot: PooledSlot, *, keep_turn: bool = False) -> None:
        """Put back a slot whose dual write is over, idle or aside, depending on the state of its id."""
        may_be_used_again = not slot.lease_lost and not self._registry.is_closed
        if may_be_used_again and slot.coordinator.is_complete:
            self._registry.put_idle(slot, keep_turn=keep_turn)
        else:
            self._registry.put_aside(slot, keep_turn=keep_turn)
            self._resolver_bell.ring()

    async def recover(self) -> list[Resolution]:
        """Resolve every slot that may have an open transaction. Raises the first error, after trying all slots."""
        hand = Hand()
        try:
            await self._begin_recovery(hand)
            return await self._recover()
        finally:
            try:
                self._registry.end_recovery(hand)
            except BaseException:  # an interruption
                self._registry.end_recovery(hand)
                raise
            self._resolver_bell.ring()

    async def _begin_recovery(self, hand: Hand) -> None:
        """Wait until no other task resolves a slot: this recovery must report all that stay open."""
        while not self._registry.begin_recovery(hand):
            await self._runtime.bell().wait(_MOMENT_S)
        others = self._registry.in_hand()
        while others := others & self._registry.in_hand():
            await self._runtime.bell().wait(_MOMENT_S)

    async def _recover(self) -> list[Resolution]:
        self._dead_refused.clear()
        ours, our_errors = await self._resolve_set_aside()
        theirs, their_errors = await self._sweep()
        errors = our_errors + their_errors
        if errors:
            errors[0].add_note(
                f"{len(errors)} slots of pool {self._prefix!r} could not be resolved now, {len(ours) + len(theirs)} "
                "could; the background keeps trying"
            )
            raise errors[0]
        return ours + theirs

    async def _resolve_set_aside(
        self, *, due_s: float | None = None, gives_way: bool = False
    ) -> tuple[list[Resolution], list[Exception]]:
        """Make one attempt at each slot of this process that is aside, and due at `due_s`."""
        found: list[Resolution] = []
        errors: list[Exception] = []
        hand = Hand()
        try:
            for _ in self._registry.places().set_aside:
                slot = None if self._is_left else self._registry.attend(hand, due_s, gives_way=gives_way)
                if slot is None:
                    break
                try:
                    found += await self._resolve(slot, hand)
                except KafkaUnreachableError as error:
                    errors.append(error)
                    break  # the others would only lock their rows in vain
                except Exception as error:
                    pass_on_signal(error)
                    errors.append(error)
        finally:
            self._registry.let_go(hand)
        return found, errors

    async def _resolve(self, slot: PooledSlot, hand: Hand) -> list[Resolution]:
        """Resolve a slot that the caller has in hand; afterwards it is idle, aside, or gone."""
        found: list[Resolution] = []
        self._limit_waits(slot.coordinator, share=1)
        try:
            if self._is_ours_to_resolve(slot):
                with slot.coordinator.exclusively():
                    found.append(await slot.coordinator.recover())
                self._counts.recovered += 1
        except LeaseLostError:
            self.note_lost(slot)  # the owner of the lease resolves it
        except BaseException as error:
            if slot.coordinator.state is not SlotState.FENCED or not isinstance(error, Exception):
                slot.failures += 1
                slot.not_before_s = time.monotonic() + pause_after(error, slot.failures)
                self._registry.put_aside(slot)
                raise
            # No caller waits for this error, and the outcome of a superseded lost commit stays unknown.
            _log.warning("pool %s: giving up %s: %s", self._prefix, slot.coordinator.transactional_id, error)
        if slot.failures:
            slot.failures = 0
            self._registry.make_due()  # the broker or database that failed for this slot is back for the others too
        if slot.coordinator.is_complete and not slot.lease_lost and not self._registry.is_closed:
            self._registry.put_idle(slot)
        else:
            await self._part_with(slot, hand)
        return found

    def _limit_waits(self, coordinator: DualWriteCoordinator, *, share: float) -> None:
        """Let each wait of a last attempt take at most this share of the time that is left."""
        if self._last_attempt_until_s:
            left_ms = (self._last_attempt_until_s - time.monotonic()) * 1000
            coordinator.owned.limit_waits(max(1, int(left_ms * share)))

    @staticmethod
    def _is_ours_to_resolve(slot: PooledSlot) -> bool:
        """Return whether this process must resolve the slot: for its own lost commit, or because it has the lease."""
        if slot.coordinator.state is SlotState.UNRESOLVED:
            return True
        if slot.lease_lost or slot.coordinator.state in (SlotState.FENCED, SlotState.CLOSED):
            return False
        return not slot.coordinator.is_complete

    async def _part_with(self, slot: PooledSlot, hand: Hand) -> None:
        clean = False
        try:
            clean = slot.coordinator.is_complete
            remaining_ms = int((self._last_attempt_until_s - time.monotonic()) * 1000)
            await slot.coordinator.close(settle_ms=0 if slot.lease_lost else min(SETTLE_MS, remaining_ms))
        finally:
            self._registry.forget(slot, hand)
            await self.end_lease(slot.number, clean=clean)

    async def end_lease(self, number: int, *, clean: bool) -> None:
        """End the lease of a reserved slot, and the reservation. `clean`: nothing is open under its id."""
        try:
            await self._end_lease(number, clean=clean)
        finally:
            self._registry.unreserve(number)

    async def _end_lease(self, number: int, *, clean: bool) -> None:
        try:
            if clean:
                await self._leases.release(number)
            else:
                await self._leases.abandon(number)
        except Exception as error:
            pass_on_signal(error)
            _log.warning("pool %s: a lease could not be released, and will expire", self._prefix, exc_info=True)

    async def _sweep(self, *, gives_way: bool = False) -> tuple[list[Resolution], list[Exception]]:
        """Recover the slots of dead processes, so that live ones can use them.

        A sweep that is stopped recovers one more, if there is time: else no process of a fleet would ever recover a
        slot, if each lives for one block. A slot that fails does not count, or all processes would try the same slot.
        """
        found: list[Resolution] = []
        errors: list[Exception] = []
        try:
            await self._leases.adopt()
            expired = [lease for lease in await self._leases.every_lease() if lease.expired]
        except Exception as error:
            pass_on_signal(error)
            return [], [error]
        self._has_swept = True
        self._unrecovered = {lease.slot for lease in expired}
        self._forget_refused_but(self._unrecovered)
        for lease in expired:
            if self._stopped and (found or not self._has_time_left()):
                break
            _, not_before_s = self._dead_refused.get(lease.slot, (None, 0.0))
            if time.monotonic() < not_before_s:
                continue
            try:
                found += await self._recover_unused(lease, gives_way=gives_way)
            except KafkaUnreachableError as error:
                errors.append(error)
                break
            except Exception as error:
                pass_on_signal(error)
                errors.append(error)
        return found, errors

    def _forget_refused_but(self, slots: Collection[int]) -> None:
        """Forget the refused blocks of slots that other processes have recovered since."""
        for slot in [slot for slot in self._dead_refused if slot not in slots]:
            del self._dead_refused[slot]
            telemetry_of(transactional_id_of(self._prefix, slot)).refused(is_refused=False)

    async def _recover_unused(self, lease: Lease, *, gives_way: bool) -> list[Resolution]:
        hand = Hand()
        try:
            return await self._recover_claimed(lease, hand, gives_way=gives_way)
        finally:
            self._registry.let_go(hand)

    async def _recover_claimed(self, lease: Lease, hand: Hand, *, gives_way: bool) -> list[Resolution]:
        if not await self.claims(lease.slot, lambda: self._leases.claim(lease), hand, gives_way=gives_way):
            return []
        coordinator = self._new_coordinator(lease.slot, recovery=True)
        self._limit_waits(coordinator, share=0.5)  # the row may stay locked, and the next one be free
        clean = False
        try:
            with coordinator.exclusively():
                resolution = await coordinator.recover()
            clean = True
            self._unrecovered.discard(lease.slot)
            self._dead_refused.pop(lease.slot, None)
        except LeaseLostError as error:  # the process that has claimed it later recovers it
            _log.warning("pool %s: %s", self._prefix, error)
            return []
        except NEED_A_PERSON as error:
            self._dead_refused[lease.slot] = coordinator.refused, time.monotonic() + pause_after(error)
            raise
        finally:
            try:
                await coordinator.close()
            finally:
                await self.end_lease(lease.slot, clean=clean)
        self._counts.recovered += 1
        return [resolution]

    # ---- the end --------------------------------------------------------------------------------------------

    async def give_up_all(self) -> None:
        """Close all slots that no block uses now. Dual writes in doubt stay so, safely, until they are recovered."""
        await self._give_up_idle()
        hand = Hand()
        try:
            while (aside := self._registry.attend(hand, None)) is not None:
                await self._part_with(aside, hand)
        finally:
            self._registry.let_go(hand)

    async def _give_up_idle(self) -> None:
        hand = Hand()
        try:
            for slot in self._registry.attend_all_idle(hand):
                await self._part_with(slot, hand)
        finally:
            self._registry.let_go(hand)

    async def leave_in_hand(self) -> None:
        """Let others recover the slots at which an attempt of this process still waits for a response.

        The attempt may go on: the next owner of the id fences it, and it can begin nothing without the lease. Slots
        that are put aside from now on are given up by the resolver, if not by `give_up_all`, which comes next.
        """
        for slot in self._registry.attended():
            _log.warning(
                "transactional id %s is closed while an attempt to complete it has no response; recover() completes it",
                slot.coordinator.transactional_id,
            )
            await self._end_lease(slot.number, clean=False)
        self._left_in_hand = True
