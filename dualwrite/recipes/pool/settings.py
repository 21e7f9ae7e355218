"""The settings of a pool of transactional ids, checked when the pool is made, and the coordinators made from them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from dualwrite.delivery import Delivery, Direct, Outbox
from dualwrite.errors import ConfigError
from dualwrite.recipes.core.availability import Availability
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.id_settings import IdSettings, OneId
from dualwrite.recipes.core.leases import HeldLease, Leases, checked_prefix, outbox_id_of, transactional_id_of
from dualwrite.recipes.core.settings import checked_transactional_id
from dualwrite.recipes.core.store import Database, OutboxDatabase
from dualwrite.recipes.core.waiting import Waiting
from dualwrite.recipes.pool.outbox import OutboxWrites
from dualwrite.recipes.pool.outbox_publisher import OutboxPublisher
from dualwrite.recipes.pool.runtime import Runtime
from dualwrite.recipes.pool.status import Counts

_LEAST_LEASE_MS: Final = 100

_RECOVERY_LOCK_TIMEOUT_MS: Final = 1_000
"""How long the background waits for a row that the connection of a dead process may still lock."""


NewCoordinator = Callable[..., DualWriteCoordinator]
"""Creates the coordinator of a slot, or with `recovery=True` one that resolves a dead process's transaction."""


class PoolSettings(IdSettings):
    """The slot policy "leased ids"."""

    is_pool = True

    def __init__(self, prefix: str, settings: Mapping[str, Any]) -> None:
        self.prefix: Final = checked_prefix(prefix)
        super().__init__(transactional_id_of(self.prefix, 0), settings)
        self.max_writers: Final = _at_least(1, "max_writers", self.writing.max_writers)
        self.acquire_timeout_ms: Final = _at_least(0, "acquire_timeout_ms", self.writing.acquire_timeout_ms)
        self.lease_ms: Final = _at_least(_LEAST_LEASE_MS, "lease_ms", self.writing.lease_ms)
        self.outbox: Final = _outbox_of(self.delivery)
        self.diverts: Final = isinstance(self.delivery, Direct)
        """Whether blocks go to the outbox only while Kafka is away."""
        if self.outbox is not None:
            checked_transactional_id(outbox_id_of(self.prefix))

    @staticmethod
    def new_owner() -> str:
        """Return a name for the holder of leases: the process id, for readers, and a unique part."""
        return f"{os.getpid()}-{uuid.uuid4().hex}"

    def coordinator_maker(
        self, database: Database, waiting: Waiting, availability: Availability, leases: Leases
    ) -> NewCoordinator:
        new = partial(self._new_coordinator, database, waiting, availability)

        def new_coordinator(slot: int, *, recovery: bool = False) -> DualWriteCoordinator:
            return new(
                transactional_id_of(self.prefix, slot),
                lease=HeldLease(leases, slot),
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
        """Return the publisher of the outbox; `leases` are those of its own prefix."""
        assert self.outbox is not None, "this pool has one"
        writes = OutboxWrites(
            self.prefix,
            database=database,
            limits=self.outbox,
            config=self.config,
            lock_timeout_ms=self.writing.lock_timeout_ms,
            resolve_timeout_ms=self.writing.resolve_timeout_ms,
            sleep=waiting.sleep,
            pause=self.writing.pause,
            diverts=self.diverts,
        )
        new = partial(self._new_coordinator, database, waiting, availability, writes.transactional_id)
        return OutboxPublisher(
            self.outbox,
            writes=writes,
            leases=leases,
            lease_ms=self.lease_ms,
            new_coordinator=lambda lease: new(
                lease=lease, lock_timeout_ms=self.writing.lock_timeout_ms, is_outbox=True
            ),
            runtime=runtime,
            availability=availability,
            counts=counts,
        )


def _outbox_of(delivery: Delivery) -> Outbox | None:
    """Return the settings of a pool's outbox, or of the one to which it diverts blocks; None if it has neither."""
    if isinstance(delivery, Outbox):
        return delivery
    if delivery.when_kafka_is_away == "refuse":
        return None
    return Outbox(max_stored_bytes=delivery.max_stored_bytes, max_stored_age_ms=delivery.max_stored_age_ms)


def ids_in(settings: dict[str, Any]) -> OneId | PoolSettings:
    """Return the slot policy of a writer, and take `transactional_id` or `prefix` out of its settings.

    Raises ConfigError unless there is exactly one of the two, and for an invalid setting.
    """
    is_pool = "prefix" in settings
    if ("transactional_id" in settings) is is_pool:
        raise ConfigError(
            "a writer takes exactly one of transactional_id=..., for one dual write at a time, and prefix=..., for a "
            f"pool of ids; this one was given {'both' if is_pool else 'neither'}"
        )
    return (
        PoolSettings(settings.pop("prefix"), settings) if is_pool else OneId(settings.pop("transactional_id"), settings)
    )


def _at_least(least: int, name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} takes a whole number of at least {least}, not {value!r}")
    return value
