"""The settings of a writer, checked when it is created, and the coordinators that are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from dualwrite.delivery import Direct, Outbox
from dualwrite.errors import ConfigError
from dualwrite.recipes.core.availability import Availability
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.leases import HeldLease, checked_single_id
from dualwrite.recipes.core.metrics import Tally
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.repairability import Repairability
from dualwrite.recipes.core.settings import (
    OF_POOLS,
    KafkaSettings,
    WritingSettings,
    checked_delivery,
)
from dualwrite.recipes.core.store import Database
from dualwrite.recipes.core.turns import IdUsers
from dualwrite.recipes.core.waiting import Waiting


class IdSettings:
    """The settings that both slot policies share. Raises ConfigError if one is unknown or malformed."""

    is_pool = False

    def __init__(self, first_id: str, settings: Mapping[str, Any]) -> None:
        self.writing, self.producer_settings = WritingSettings.taken_from(settings)
        writing = self.writing
        delivery = checked_delivery(writing.delivery)
        self.delivery: Final = delivery
        kafka = KafkaSettings(first_id, self.producer_settings)
        self.first_id: Final = kafka.transactional_id
        self._producer: Final = kafka.producer
        self._cluster: Final = kafka.cluster()
        self.new_records: Final = partial(RecordBuffer, writing.max_buffered_bytes, kafka.serializers, kafka.tracer)
        self.config: Final = kafka.config
        self.tally: Final = Tally()
        self.repairability: Final = Repairability()

    def new_availability(self, waiting: Waiting) -> Availability:
        return Availability(self._cluster, waiting.new_watch())

    def _new_coordinator(
        self,
        database: Database,
        waiting: Waiting,
        availability: Availability,
        transactional_id: str,
        *,
        lock_timeout_ms: int | None,
        is_outbox: bool = False,
        lease: HeldLease | None = None,
        users: IdUsers | None = None,
    ) -> DualWriteCoordinator:
        owned = OwnedId(
            transactional_id,
            database=database,
            kafka=waiting.new_kafka(self._producer),
            lock_timeout_ms=lock_timeout_ms,
            resolve_timeout_ms=self.writing.resolve_timeout_ms,
            pause=self.writing.pause,
            uninterrupted=waiting.uninterrupted,
            availability=availability,
            partitioner=self.config.partitioner,
            is_outbox=is_outbox,
            lease=lease,
            tally=self.tally,
        )
        return DualWriteCoordinator(owned, sleep=waiting.sleep, repairability=self.repairability, users=users)


class OneId(IdSettings):
    """The slot policy "one fixed transactional id"."""

    def __init__(self, transactional_id: str, settings: Mapping[str, Any]) -> None:
        super().__init__(transactional_id, settings)
        for name in OF_POOLS:
            if name in settings:
                raise ConfigError(
                    f"{name} is a setting of a pool: make one with prefix=... in place of transactional_id=..."
                )
        if self.delivery != Direct():
            given = "Outbox()" if isinstance(self.delivery, Outbox) else 'Direct(when_kafka_is_away="store")'
            raise ConfigError(
                f"delivery={given} needs a pool, whose processes take turns in publishing: make one with prefix=... in "
                "place of transactional_id=..."
            )
        self._transactional_id = checked_single_id(self.first_id)

    def coordinator(self, database: Database, waiting: Waiting) -> DualWriteCoordinator:
        return self._new_coordinator(
            database,
            waiting,
            self.new_availability(waiting),
            self._transactional_id,
            lock_timeout_ms=self.writing.lock_timeout_ms,
            users=waiting.new_users(),
        )
