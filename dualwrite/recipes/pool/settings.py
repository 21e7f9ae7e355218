"""The settings of a pool of transactional ids, checked when the pool is made, and the coordinators made from them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from dualwrite.delivery import Outbox
from dualwrite.errors import ConfigError
from dualwrite.recipes.core.availability import Availability
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.leases import HeldLease, Leases, checked_prefix, outbox_id_of, transactional_id_of
from dualwrite.recipes.core.repairability import Repairability
from dualwrite.recipes.core.settings import (
    KafkaSettings,
    StorePolicy,
    WritingSettings,
    checked_delivery,
    checked_transactional_id,
    store_policy,
)
from dualwrite.recipes.core.store import Database, OutboxDatabase
from dualwrite.recipes.core.tally import Tally
from dualwrite.recipes.core.waiting import Waiting
from dualwrite.recipes.pool.outbox import OutboxWrites
from dualwrite.recipes.pool.outbox_publisher import OutboxPublisher
from dualwrite.recipes.pool.runtime import Runtime
from dualwrite.recipes.pool.status import Counts

_LEAST_LEASE_MS: Final = 100

_RECOVERY_LOCK_TIMEOUT_MS: Final = 1_000
"""How long the background waits for a row that the connection of a dead process may still lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWritingSettings(WritingSettings):
    """`WritingSettings` of a pool, by `dualwrite.settings.WriterPoolSettings`."""

    max_writers: int = 8
    acquire_timeout_ms: int = 30_000
    lease_ms: int = 15_000


class NewCoordinator(Protocol):
    """Creates the coordinator of one slot."""

    def __call__(self, slot: int, *, recovery: bool = False) -> DualWriteCoordinator:
        """Return a coordinator for dual writes, or with `recovery` one that resolves a dead process's transaction."""


class PoolSettings:
    """The slot policy "leased ids".

    Raises ConfigError for settings that are unknown or malformed, or that pools do not have.
    """

    def __init__(self, prefix: str, settings: Mapping[str, Any]) -> None:
        self.writing, self.producer_settings = PoolWritingSettings.taken_from(settings)
        if "transactional_id" in settings:
            raise ConfigError("transactional_id cannot be set for a pool, which makes its ids from the prefix")
        self.prefix: Final = checked_prefix(prefix)
        self.max_writers: Final = _at_least(1, "max_writers", self.writing.max_writers)
        self.acquire_timeout_ms: Final = _at_least(0, "acquire_timeout_ms", self.writing.acquire_timeout_ms)
        self.lease_ms: Final = _at_least(_LEAST_LEASE_MS, "lease_ms", self.writing.lease_ms)
        delivery = checked_delivery(self.writing.delivery)
        self.outbox: Final = delivery if isinstance(delivery, Outbox) else None
        if self.outbox is not None:
            checked_transactional_id(outbox_id_of(self.prefix))
        kafka = self._kafka(transactional_id_of(prefix, 0))
        self._cluster = kafka.cluster()
        self.new_records: Final = partial(
            RecordBuffer, self.writing.max_buffered_bytes, kafka.serializers, kafka.tracer
        )
        self.policy: Final = store_policy(kafka, delivery)
        self.tally: Final = Tally()
        self.repairability: Final = Repairability()

    def _kafka(self, transactional_id: str) -> KafkaSettings:
        return KafkaSettings(transactional_id, self.producer_settings)

    @staticmethod
    def new_owner() -> str:
        """Return a name for the holder of leases: the process id, for readers, and a unique part."""
        return f"{os.getpid()}-{uuid.uuid4().hex}"

    def new_availability(self, waiting: Waiting) -> Availability:
        """Return what a pool knows about Kafka in one process."""
        return Availability(self._cluster, waiting.new_watch())

    def coordinator_maker(
        self, database: Database, waiting: Waiting, availability: Availability, leases: Leases
    ) -> NewCoordinator:
        """Return the function that creates the coordinator of a slot."""
        new = partial(self._new_coordinator, database, waiting, availability)

        def new_coordinator(slot: int, *, recovery: bool = False) -> DualWriteCoordinator:
            return new(
                transactional_id_of(self.prefix, slot),
                HeldLease(leases, slot),
                self.policy,
                self.repairability,
                lock_timeout_ms=_RECOVERY_LOCK_TIMEOUT_MS if recovery else self.writing.lock_timeout_ms,
            )

        return new_coordinator

    def new_outbox(
        self,
        database: OutboxDatabase,
        waiting: Waiting,
        availability: Availability,
        leases: Leases,
        runtime: Runtime,
        counts: Counts,
    ) -> OutboxPublisher:
        """Return what publishes the outbox; `leases` are of its own prefix."""
        assert self.outbox is not None, "this pool has one"
        policy = self.policy.of_outbox
        writes = OutboxWrites(
            self.prefix,
            database=database,
            policy=policy,
            resolve_timeout_ms=self.writing.resolve_timeout_ms,
            sleep=waiting.sleep,
            pause=self.writing.pause,
        )
        new = partial(self._new_coordinator, database, waiting, availability, writes.transactional_id)
        repairability = Repairability(keeps_records=True)
        return OutboxPublisher(
            self.outbox,
            writes=writes,
            leases=leases,
            lease_ms=self.lease_ms,
            new_coordinator=lambda lease: new(
                lease, policy, repairability, lock_timeout_ms=self.writing.lock_timeout_ms
            ),
            runtime=runtime,
            availability=availability,
            counts=counts,
        )

    def _new_coordinator(
        self,
        database: Database,
        waiting: Waiting,
        availability: Availability,
        transactional_id: str,
        lease: HeldLease,
        policy: StorePolicy,
        repairability: Repairability,
        *,
        lock_timeout_ms: int | None,
    ) -> DualWriteCoordinator:
        made = DualWriteCoordinator(
            transactional_id,
            database=database,
            kafka=waiting.new_kafka(self._kafka(transactional_id).producer),
            sleep=waiting.sleep,
            lock_timeout_ms=lock_timeout_ms,
            resolve_timeout_ms=self.writing.resolve_timeout_ms,
            pause=self.writing.pause,
            uninterrupted=waiting.uninterrupted,
            policy=policy,
            repairability=repairability,
            availability=availability,
            lease=lease,
        )
        made.owned.tally = self.tally
        return made


def _at_least(least: int, name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} takes a whole number of at least {least}, not {value!r}")
    return value
