"""The background of a pool with an outbox: publishes its blocks, in one process at a time.

The process that has the lease of the outbox's only slot publishes, by dual writes under the slot's transactional id:
each deletes the oldest blocks and writes Kafka's prepared state in one commit. So every block is published exactly
once, whichever process publishes it and wherever that process dies. The lease only keeps the others from trying: two
that publish at once wait for each other's row lock, and fence each other.

There is one publisher for the order of the records: of two, each might publish the later block of a key first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from dualwrite.delivery import Outbox
from dualwrite.errors import DatabaseWentBackError, FencedError, IllegalStateError, RecordsRefusedError
from dualwrite.guarded import pass_on_signal
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.availability import Availability
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.dual_write import Resolution
from dualwrite.recipes.core.leases import HeldLease, Leases
from dualwrite.recipes.core.refused import RefusedBlock
from dualwrite.recipes.core.telemetry import telemetry_of
from dualwrite.recipes.core.turns import IdUse
from dualwrite.recipes.core.waiting import NEED_A_PERSON, pause_after
from dualwrite.recipes.pool.outbox import OutboxWrites
from dualwrite.recipes.pool.outbox_vacuum import OutboxVacuum
from dualwrite.recipes.pool.runtime import Loops, Runtime
from dualwrite.recipes.pool.status import Counts, log_failure

_log = logging.getLogger(__name__)

_SLOT: Final = 0

_MOMENT_S: Final = 0.02
"""How often `recover` looks whether a round is over."""

_IDLE_S_TO_SETTLE: Final = 1.0
"""How long after the last batch to settle its row, which costs a commit."""

_MOST_IDLE_S: Final = 1.0
"""How long at most to wait between attempts to become the publisher, and between queries of the backlog."""

_LEASES_TO_STAND_BACK: Final = 2
"""For how many lease times a process that could not publish leaves the outbox to others."""

_SHARE_OF_POLLS: Final = 0.1
"""The most of its time that an idle publisher spends looking for blocks of other processes."""

_SECONDS_TO_LOOK_AGAIN: Final = 2.0
"""How often to look for a diversion of other processes, if blocks of this one are never diverted."""

_SECONDS_TO_STOP: Final = 5.0


class OutboxPublisher:
    """Publishes the outbox of one prefix, while this process has its lease, which `PoolMaintenance` renews."""

    def __init__(
        self,
        settings: Outbox,
        *,
        writes: OutboxWrites,
        leases: Leases,
        lease_ms: int,
        new_coordinator: Callable[[HeldLease], DualWriteCoordinator],
        runtime: Runtime,
        availability: Availability,
        counts: Counts,
    ) -> None:
        self.writes: Final = writes
        self._settings = settings
        self._leases = leases
        self._lease_s = lease_ms / 1000
        self._new_coordinator = new_coordinator
        self._runtime = runtime
        self._availability = availability
        self._counts = counts
        self._coordinator: DualWriteCoordinator | None = None
        """Publishes; None while another process has the lease."""
        self._has_recovered = False
        """Whether the coordinator has completed the open transaction, and has had no error since."""
        self._is_complete = False
        """Whether this process has found that nothing is open under the id, while blocks go to Kafka themselves."""
        self._refused_until_s = 0.0
        """When to try again after Kafka has refused the oldest block for good, by the monotonic clock."""
        self.refused: RefusedBlock | None = None
        """The oldest block, if Kafka has refused it for good, until it is published, or another process publishes."""
        self._has_added = False
        """Whether blocks are likely to wait: this process has added some, or the last batch was not empty."""
        self._was_not_empty = False
        """Whether the last batch had any blocks."""
        self._is_draining = False
        """Whether more blocks wait than the last batch has taken."""
        self._settles_at_s = 0.0
        """When to settle the row of the last batch, by the monotonic clock."""
        self._lease_lost = False
        self._failures = 0
        self._failing_since_s: float | None = None
        """Since when this process leads and cannot publish, by the monotonic clock."""
        self._leads_not_before_s = 0.0
        self._looks_at_backlog_s = 0.0
        """When to query the backlog again, which reads all of it."""
        self._looks_at_diversion_s = 0.0
        """When to look again for a diversion of other processes."""
        self._callers = 0
        """How many calls of `recover` wait; for them, no attempt is left out."""
        self._found: list[Resolution] = []
        self.last_error: Exception | None = None
        """Why the last attempt to publish failed; None if it did not."""
        self._rounds = 0
        """How many rounds have ended, with nothing left to do or with an error."""
        self._vacuum = OutboxVacuum(f"dualwrite-{writes.transactional_id}", database=writes.database, runtime=runtime)
        self._bell = runtime.bell()
        self._no_linger = runtime.bell()
        """Rings to end a linger."""
        self._preparing = runtime.new_queue()
        self._is_prepared = False
        self._publisher = f"dualwrite-{writes.transactional_id}-publisher"
        self._loops = Loops(runtime, {self._publisher: self._publish_for_ever})
        self._stopped = False
        writes.on_added = self._note_added
        writes.on_unresolved = self._bell.ring

    @property
    def publishes(self) -> bool:
        return self._coordinator is not None

    def wake(self) -> None:
        self._bell.ring()

    def _note_added(self) -> None:
        self._has_added = True
        if self._has_recovered:  # otherwise it is of no use to try at each block
            self._bell.ring()

    async def get_ready(self) -> None:
        """Get ready for a block. Raises StoreFullError if the backlog exceeds a limit."""
        self.writes.assert_not_full()
        if not self._is_prepared:
            await self.prepare()

    async def prepare(self) -> None:
        """Create the tables and the state row, once: each task would need a connection of its own for it."""
        if self._is_prepared:
            return
        use = IdUse()
        try:
            await self._preparing.join_and_wait(use, None)
            if not self._is_prepared:  # by the first task
                await self.writes.prepare()
                await self._leases.every_lease()
                self._is_prepared = True
        finally:
            try:
                self._preparing.leave(use)
            except BaseException:  # an interruption
                self._preparing.leave(use)
                raise

    async def prepare_again(self) -> None:
        """Do what each block needs of the outbox, after one was refused. Raises StoreFullError, and as `prepare`."""
        self.writes.assert_not_full()
        self._is_prepared = False
        await self.prepare()

    # ---- its loop -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the background, or restart it if it has ended; harmless when repeated."""
        if not (self._loops.are_running or self._stopped):
            self._loops.start()

    @property
    def goes_on(self) -> bool:
        """Whether the lease is to be renewed: without a publisher, other processes are to take it."""
        return self._loops.are_running and not self._stopped

    async def renew(self) -> None:
        """Renew the lease if this process publishes, and note whether it has been lost."""
        if self._coordinator is None:
            return
        try:
            if _SLOT not in await self._leases.renew({_SLOT}):
                self._lease_lost = True
        except Exception as error:
            self._failed(error)

    async def _publish_for_ever(self) -> None:
        while not self._stopped:
            pause_s = await self.work_once()
            if not self._is_draining:
                self._rounds += 1
            await self._bell.wait(pause_s)

    async def work_once(self) -> float:
        """Do one round of work. Return how many seconds to wait afterwards, unless the bell rings."""
        unresolved = await self.writes.resolve_lost()
        if unresolved is not None:
            self._failed(unresolved)
        try:
            wait_s = await self._publish_if_leading()
        except NEED_A_PERSON as error:
            self._refused_until_s = time.monotonic() + pause_after(error)
            self._note_refusal(error)
            wait_s = self._idle_s
        except DatabaseWentBackError as error:  # the coordinator stays: another one would not remember the later row
            self._note_refusal(error)
            wait_s = self._idle_s
        except Exception as error:
            self._failed(error)
            self._failures += 1
            wait_s = pause_after(error, self._failures)
            await self._leave_to_others_in_time()
            await self._look_at_backlog()
        else:
            self._failures = 0
            if not self._availability.is_away:
                self._failing_since_s = None
                if unresolved is None and not self._waits_after_refusal:
                    self.last_error = None
        return wait_s

    def _note_refusal(self, error: Exception) -> None:
        """Note an error that only a person can end, and log it once; its coordinator logs RecordsRefusedError."""
        if not isinstance(error, RecordsRefusedError) and type(error) is not type(self.last_error):
            _log.error("%s", error)
        if self._coordinator is not None:
            self.refused = self._coordinator.refused
        self.last_error = error

    @property
    def _idle_s(self) -> float:
        return min(_MOST_IDLE_S, self._lease_s / 3)

    @property
    def _waits_after_refusal(self) -> bool:
        """Whether to leave the outbox to processes with other rights, settings or features.

        The lease is left to expire then, and not given back: each attempt raises the producer epoch, so all processes
        together are to make at most one in each lease.
        """
        return time.monotonic() < self._refused_until_s

    async def _publish_if_leading(self) -> float:
        if await self._may_rest():
            return await self._rest()
        if self._lease_lost or (self._waits_after_refusal and not self._callers):
            await self._part_with_slot(holds_lease=False)
        if self._coordinator is None and not await self._lead():
            await self._look_at_backlog()
            return self._idle_s
        if self._availability.is_away and not self._callers:
            self._availability.keep_watching()
            await self._leave_to_others_in_time()
            await self._look_at_backlog()
            return self._idle_s
        began_s = time.monotonic()
        if not await self._is_anything_waiting():
            self.writes.backlog = None
            pause_s = max(self._settings.poll_ms / 1000, (time.monotonic() - began_s) / _SHARE_OF_POLLS)
            if await self._end_diversion():
                return 0.0
            if time.monotonic() >= self._settles_at_s:
                await self._settle()
            return pause_s
        if await self._publish():
            await self._look_at_backlog()
        elif self._coordinator is not None:
            self.writes.backlog = None
            if not await self._end_diversion():
                await self._linger()
        return 0.0

    async def _may_rest(self) -> bool:
        """Return whether to leave the outbox alone.

        Without a diversion no block is waiting in it. But a publisher of a pool with `Outbox()`, as this one was before
        its `delivery` changed, may have left its last batch in doubt.
        """
        if self.writes.is_diverted or await self.writes.look_at_diversion():
            return False
        if self._coordinator is not None:
            self._is_complete = self._has_recovered
        elif not self._is_complete:
            self._is_complete = all(lease.free for lease in await self._leases.every_lease())
        return self._is_complete

    async def _rest(self) -> float:
        """Leave the outbox alone: it is empty, and blocks go to Kafka themselves."""
        self.writes.backlog = None
        if self._coordinator is not None:
            await self._part_with_slot(holds_lease=True)
        return self._idle_s

    async def _end_diversion(self) -> bool:
        """Let blocks go to Kafka themselves again, if they went here because Kafka was away, and nothing is left."""
        coordinator, before = self._coordinator, self.writes.diversions
        if coordinator is None or not self._has_recovered or (name := await self._diversion_to_end()) is None:
            return False
        self._has_recovered = False  # until it has succeeded
        with coordinator.exclusively():
            is_over = await coordinator.end_diversion(name)
        self._has_recovered = True
        return is_over and self.writes.diverts and not self.writes.note_diverted(False, before)

    async def _diversion_to_end(self) -> str | None:
        """Return the name of the diversion of this process, or of others, which no other can end now."""
        if self.writes.diverts:
            return self.writes.diversion
        now_s = time.monotonic()
        if now_s < self._looks_at_diversion_s:
            return None
        self._looks_at_diversion_s = now_s + _SECONDS_TO_LOOK_AGAIN
        return self.writes.diversion if await self.writes.look_at_others() else None

    async def _linger(self) -> None:
        """Let blocks gather after a batch that was not empty: a batch costs the same for some dozens."""
        if not self._settings.linger_ms or not self._was_not_empty:
            return
        ends_s = time.monotonic() + self._settings.linger_ms / 1000
        while not self._callers and not self._stopped and (left_s := ends_s - time.monotonic()) > 0:
            await self._no_linger.wait(left_s)  # it may have rung for a `recover` that has ended

    def _failed(self, error: Exception) -> None:
        self.last_error = error
        self._counts.background_failures += 1
        log_failure(_log, f"outbox {self.writes.transactional_id}: publishing", error, self._leases.errors)

    async def _look_at_backlog(self) -> None:
        """Query the backlog, for the limits and the status, no more often than is of use."""
        now_s = time.monotonic()
        if now_s < self._looks_at_backlog_s:
            return
        try:
            self.writes.backlog = await self.writes.database.backlog(self.writes.transactional_id)
        except Exception as error:  # a database that cannot be queried refuses the blocks by itself
            _log.debug("outbox %s: %s", self.writes.transactional_id, error)
        took_s = time.monotonic() - now_s
        self._looks_at_backlog_s = now_s + max(self._idle_s, took_s / _SHARE_OF_POLLS)

    # ---- the lease ------------------------------------------------------------------------------------------

    async def _lead(self) -> bool:
        """Become the publisher, if there is none. Return whether this process is it now."""
        stands_back = time.monotonic() < max(self._leads_not_before_s, self._refused_until_s) and not self._callers
        if not self._settings.publishes or stands_back:
            return False
        if not await self._has_lease():
            self._forget_refused()
            return False
        self._coordinator = self._new_coordinator(HeldLease(self._leases, _SLOT))
        self._has_recovered = self._lease_lost = False
        self._failing_since_s = None
        self._looks_at_diversion_s = time.monotonic() + _SECONDS_TO_LOOK_AGAIN
        return True

    async def _has_lease(self) -> bool:
        if _SLOT in await self._leases.renew({_SLOT}):
            return True
        for lease in await self._leases.every_lease():
            if lease.slot == _SLOT:
                return (lease.free or lease.expired) and await self._leases.claim(lease)
        return await self._leases.add(_SLOT)

    async def _leave_to_others_in_time(self) -> None:
        """Leave the outbox to processes that may reach Kafka, if this one could not publish for as long as a lease."""
        now_s = time.monotonic()
        if self._coordinator is None:
            return
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if now_s - self._failing_since_s < self._lease_s or self._callers:
            return
        self._leads_not_before_s = now_s + _LEASES_TO_STAND_BACK * self._lease_s
        try:
            await self._part_with_slot(holds_lease=True)
        except Exception as error:
            self._failed(error)

    def _forget_refused(self) -> None:
        if self.refused is not None:
            self.refused = None
            telemetry_of(self.writes.transactional_id).refused(is_refused=False)

    async def _part_with_slot(self, *, holds_lease: bool) -> None:
        """Let another process publish, and complete the transaction that is left open."""
        coordinator, self._coordinator = self._coordinator, None
        self._has_recovered = self._lease_lost = self._is_draining = False
        is_complete = coordinator is not None and coordinator.is_complete
        try:
            if coordinator is not None:
                await coordinator.close()
        finally:
            if holds_lease:
                await (self._leases.release if is_complete else self._leases.abandon)(_SLOT)

    # ---- publishing -----------------------------------------------------------------------------------------

    async def _is_anything_waiting(self) -> bool:
        """Return whether blocks wait to be published; those that this process has just added need no query."""
        added, self._has_added = self._has_added, False
        if added or self._is_draining or not self._has_recovered or self._callers:
            return True
        return await self.writes.database.has_waiting(self.writes.transactional_id)

    async def _publish(self) -> bool:
        """Publish the waiting blocks, or the oldest batch of them. Return whether more wait."""
        coordinator = self._coordinator
        assert coordinator is not None, "this process leads"
        was_draining, self._is_draining = self._is_draining, False
        try:
            with coordinator.exclusively():
                more = await self._publish_by(coordinator, goes_on=was_draining)
        except FencedError as error:
            _log.info("outbox %s: another process publishes now (%s)", self.writes.transactional_id, error)
            await self._part_with_slot(holds_lease=False)
            return False
        self._is_draining = more
        return more

    async def _publish_by(self, coordinator: DualWriteCoordinator, *, goes_on: bool) -> bool:
        """Publish one batch, so that lost commits, the lease and `close` wait no longer than it takes."""
        recovers = not self._has_recovered or (bool(self._callers) and not goes_on)
        self._has_recovered = False  # until it has succeeded
        if recovers:
            resolution = await coordinator.recover(publishes_all=False)
            if self._callers and resolution.outcome is not Outcome.NOTHING:
                self._found.append(resolution)
        else:
            resolution = await coordinator.publish_stored()
        self._has_recovered = True
        self._refused_until_s = 0.0
        self._forget_refused()
        self._settles_at_s = time.monotonic() + _IDLE_S_TO_SETTLE
        self._was_not_empty = resolution.outcome is Outcome.PUBLISHED
        if self._was_not_empty:
            self._has_added = True  # other processes may have added blocks meanwhile
        if self._was_not_empty and not self._stopped:
            self._vacuum.note_published(coordinator.published_blocks)
        return coordinator.owned.has_stored

    async def _settle(self) -> None:
        """Settle the row of the last batch while its commit can still be seen: the log forgets it too."""
        coordinator = self._coordinator
        if coordinator is None or not coordinator.is_unsettled or not self._has_recovered:
            return
        self._settles_at_s = time.monotonic() + _IDLE_S_TO_SETTLE
        self._has_recovered = False  # until it has succeeded
        with coordinator.exclusively():
            await coordinator.settle()
        self._has_recovered = True

    async def recover(self) -> list[Resolution]:
        """Publish the waiting blocks, unless another process does, or this one may not. Return the resolutions.

        Raises the error of the last attempt, and IllegalStateError if the background has ended.
        """
        await self.prepare()
        if not self._settings.publishes:
            return []
        self.start()
        known = len(self._found)
        self._callers += 1
        try:
            first = self._rounds + 2  # the round in progress may have begun before the blocks were there
            while self._rounds < first:
                if not self._loops.are_running:
                    raise IllegalStateError(
                        f"the background that publishes the outbox {self.writes.transactional_id!r} has ended, "
                        "because the pool is closed or its task was cancelled; its blocks stay in the database: make "
                        "a new pool"
                    )
                self._no_linger.ring()
                self._bell.ring()
                await self._runtime.bell().wait(_MOMENT_S)
            found = self._found[known:]
        finally:
            self._callers -= 1
            if not self._callers:
                self._found.clear()
        if self.last_error is not None:
            raise self.last_error
        return found

    # ---- the end --------------------------------------------------------------------------------------------

    def begin_no_more(self) -> None:
        self._stopped = True
        self._no_linger.ring()
        self._bell.ring()

    async def stop(self) -> None:
        """Publish the waiting blocks, if this process is the publisher and Kafka can be reached; let others go on."""
        self.begin_no_more()
        await self._loops.join(self._publisher, _SECONDS_TO_STOP)
        if self._vacuum.background is not None:  # the publisher begins no other from here on
            await self._vacuum.background.join(_SECONDS_TO_STOP)
        try:
            await self.writes.resolve_lost()
            await self._publish_the_rest()
        except Exception as error:
            pass_on_signal(error)
            _log.warning(
                "outbox %s: its blocks are left to other processes, or to the next one (%s)",
                self.writes.transactional_id,
                str(error).partition("\n")[0],
            )
        if self.writes.has_unresolved:
            _log.warning(
                "outbox %s: the outcome of a commit without a response is unknown, and this process stops querying "
                "it; both sides agree in either case",
                self.writes.transactional_id,
            )

    async def _publish_the_rest(self) -> None:
        if self._coordinator is None:
            return
        ends_s = time.monotonic() + _SECONDS_TO_STOP
        try:
            if not self._availability.is_away and not self._lease_lost:
                while await self._publish() and time.monotonic() < ends_s:
                    pass
                await self._settle()
        finally:
            await self._part_with_slot(holds_lease=not self._lease_lost)
