"""The background of a pool with an outbox: publishes what blocks have added to it, in one process at a time.

The process that has the lease of the outbox's only slot publishes, by dual writes under the slot's transactional id:
each deletes the oldest blocks and writes Kafka's prepared state in one commit. So whoever publishes, and whatever
happens to it, each block is published once, as any dual write. The lease only keeps the others from trying: two that
publish at once wait for each other's row lock, and fence each other.

There is one publisher for the order of the records: of two, each might publish the later block of a key first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from dualwrite.errors import DualWriteError, FencedError, KafkaError, StoredBlockRefusedError
from dualwrite.recipes.core.availability import Availability
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.dual_write import Resolution
from dualwrite.recipes.core.leases import HeldLease, Leases
from dualwrite.recipes.core.refused import RefusedBlock
from dualwrite.recipes.pool.outbox import OutboxWrites
from dualwrite.recipes.pool.outbox_settings import Outbox
from dualwrite.recipes.pool.runtime import Background, Runtime
from dualwrite.recipes.pool.status import Counts

_log = logging.getLogger(__name__)

_SLOT: Final = 0

_BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

_SECONDS_AFTER_REFUSAL: Final = 60.0
"""How long after Kafka has refused a block for good to try again: only a person can change that."""

_SECONDS_TO_LEAD: Final = 1.0
"""How long to wait between attempts to become the process that publishes; at most a third of a lease."""

_SECONDS_TO_STOP: Final = 5.0


class OutboxPublisher:
    """Publishes the outbox of one prefix, while this process has its lease."""

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
        self._heartbeat_s = lease_ms / 3000
        self._new_coordinator = new_coordinator
        self._runtime = runtime
        self._availability = availability
        self._counts = counts
        self._coordinator: DualWriteCoordinator | None = None
        """Publishes; None while another process has the lease."""
        self._has_recovered = False
        """Whether the coordinator knows that it has completed what was open, and has had no error since."""
        self._lease_lost = False
        self._failures = 0
        self._found: list[Resolution] = []
        self._last_error: Exception | None = None
        self._rounds = 0
        self._round_over = runtime.bell()
        self._bell = runtime.bell()
        self._heartbeat_bell = runtime.bell()
        self._background: list[Background] = []
        self._starting = threading.Lock()
        self._stopped = False
        self._is_wanted = False
        """Whether `recover` waits, which tries even if Kafka is known to be away."""
        self._has_added = False
        """Whether this process has added something since it last looked."""
        writes.on_added = self._note_added

    def _note_added(self) -> None:
        self._has_added = True
        self._bell.ring()

    @property
    def publishes(self) -> bool:
        """Whether this process publishes now."""
        return self._coordinator is not None

    @property
    def refused(self) -> RefusedBlock | None:
        """The oldest block, if Kafka has refused it for good, as far as this process knows."""
        coordinator = self._coordinator
        return None if coordinator is None else coordinator.refused

    def wake(self) -> None:
        """Look for something to do, because Kafka has come back, or has gone."""
        self._bell.ring()

    # ---- loops ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the background; harmless when repeated."""
        if self._background or self._stopped:
            return
        with self._starting:
            if not self._background:
                name = f"dualwrite-{self.writes.transactional_id}"
                publisher = self._runtime.spawn(f"{name}-publisher", self._publish_for_ever)
                heartbeat = self._runtime.spawn(f"{name}-lease", self._renew_for_ever)
                self._background = [publisher, heartbeat]

    async def _renew_for_ever(self) -> None:
        while not self._stopped:
            await self._heartbeat_bell.wait(self._heartbeat_s)
            if self._stopped or self._coordinator is None:
                continue
            try:
                if _SLOT not in await self._leases.renew({_SLOT}):
                    self._lease_lost = True
            except Exception as error:
                self._failed(error)

    async def _publish_for_ever(self) -> None:
        while not self._stopped:
            pause_s = await self._round()
            self._rounds += 1
            self._round_over.ring()
            await self._bell.wait(pause_s)

    async def _round(self) -> float:
        """Do what there is to do. Return for how many seconds to wait then, unless something wakes the publisher."""
        try:
            if self.writes.unresolved:
                await self.writes.resolve_lost()
            pause_s = await self._publish_if_leading()
        except StoredBlockRefusedError as error:  # which is logged once
            self._last_error = error
            await self._note_backlog()
            return _SECONDS_AFTER_REFUSAL
        except Exception as error:
            self._failed(error)
            self._failures += 1
            await self._note_backlog()
            return _BACKOFF_S[min(self._failures, len(_BACKOFF_S)) - 1]
        self._failures = 0
        self._last_error = None
        return pause_s

    async def _publish_if_leading(self) -> float:
        if self._lease_lost:
            await self._part_with_slot(holds_lease=False)
        if self._coordinator is None and not await self._lead():
            await self._note_backlog()
            return min(_SECONDS_TO_LEAD, self._heartbeat_s)
        if self._availability.is_away and not self._is_wanted:
            self._availability.keep_watching()
            await self._note_backlog()
            return self._heartbeat_s
        await self._publish()
        return self._settings.poll_ms / 1000

    def _failed(self, error: Exception) -> None:
        self._last_error = error
        self._counts.background_failures += 1
        self._counts.last_background_error = f"{type(error).__name__}: {error}"
        self._counts.kafka_failed = isinstance(error, KafkaError)
        expected = isinstance(error, (*self._leases.errors, DualWriteError))
        _log.warning(
            "outbox %s: could not be published now, which will be tried again: %s",
            self.writes.transactional_id,
            str(error).partition("\n")[0],
            exc_info=None if expected else error,
        )

    async def _note_backlog(self) -> None:
        """Query what waits, for the limits; a database that cannot be queried refuses the blocks by itself."""
        try:
            self.writes.backlog = await self.writes.database.backlog(self.writes.transactional_id)
        except self.writes.database.errors as error:
            _log.debug("outbox %s: %s", self.writes.transactional_id, error)

    # ---- the lease ------------------------------------------------------------------------------------------

    async def _lead(self) -> bool:
        """Become the process that publishes, if there is none. Return whether this is it now."""
        if not self._settings.publishes:
            return False
        await self.writes.prepare()
        if not await self._has_lease():
            return False
        self._coordinator = self._new_coordinator(HeldLease(self._leases, _SLOT))
        self._has_recovered = self._lease_lost = False
        return True

    async def _has_lease(self) -> bool:
        if _SLOT in await self._leases.renew({_SLOT}):
            return True
        for lease in await self._leases.every_lease():
            if lease.slot == _SLOT:
                return (lease.free or lease.expired) and await self._leases.claim(lease)
        return await self._leases.add(_SLOT)

    async def _part_with_slot(self, *, holds_lease: bool) -> None:
        """Let another process publish. What is left open is completed by it."""
        coordinator, self._coordinator = self._coordinator, None
        self._lease_lost = False
        try:
            if coordinator is not None:
                await coordinator.close(waits=holds_lease)
        finally:
            if holds_lease:
                await self._leases.release(_SLOT)

    # ---- publishing -----------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        coordinator = self._coordinator
        assert coordinator is not None, "this process leads"
        try:
            with coordinator.exclusively():
                await self._publish_by(coordinator)
        except FencedError as error:
            _log.info("outbox %s: another process publishes now (%s)", self.writes.transactional_id, error)
            await self._part_with_slot(holds_lease=False)

    async def _publish_by(self, coordinator: DualWriteCoordinator) -> None:
        if not self._has_recovered:
            resolution = await coordinator.recover()
            if resolution.outcome is not Outcome.NOTHING:
                self._found.append(resolution)
            self._has_recovered = True
        elif await self._has_waiting():
            self._has_recovered = False
            await coordinator.publish_stored()
            self._has_recovered = True
        self.writes.backlog = None

    async def _has_waiting(self) -> bool:
        """Return whether there is something to publish; what this process has just added needs no query."""
        added, self._has_added = self._has_added, False
        return added or await self.writes.database.has_waiting(self.writes.transactional_id)

    async def recover(self) -> list[Resolution]:
        """Publish what waits, unless another process does. Return what was left open. Raises why that is impossible."""
        await self.writes.prepare()
        self.start()
        self._found.clear()
        self._is_wanted = True
        first = self._rounds + 2  # the one in progress may have begun before what is looked for was there
        while self._rounds < first and not self._stopped:
            self._bell.ring()
            await self._round_over.wait(self._heartbeat_s)
        self._is_wanted = False
        if self._last_error is not None:
            raise self._last_error
        return list(self._found)

    # ---- the end --------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Publish what this process has added, if it publishes and Kafka can be reached, and let others go on."""
        self._stopped = True
        self._bell.ring()
        self._heartbeat_bell.ring()
        for background in self._background:
            await background.join(_SECONDS_TO_STOP)
        if self._coordinator is None:
            return
        try:
            if not self._availability.is_away and not self._lease_lost:
                await self._publish()
            await self._part_with_slot(holds_lease=True)
        except Exception as error:
            _log.warning(
                "outbox %s: what it holds is left to other processes, or to the next one (%s)",
                self.writes.transactional_id,
                str(error).partition("\n")[0],
            )

    def begin_no_more(self) -> None:
        """Let the background end after its current attempt."""
        self._stopped = True
        self._bell.ring()
        self._heartbeat_bell.ring()
