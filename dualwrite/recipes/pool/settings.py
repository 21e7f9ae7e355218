"""The settings of a pool of transactional ids, checked when it is made, and the dual writes that follow from them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from dualwrite.errors import ConfigError
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.settings import Confirm, KafkaSettings, follows_later
from dualwrite.recipes.core.shield import Uninterrupted, direct
from dualwrite.recipes.core.store import Database
from dualwrite.recipes.pool.leases import checked_prefix, transactional_id_of

_LEAST_LEASE_MS: Final = 100

_RECOVERY_LOCK_TIMEOUT_MS: Final = 1_000
"""How long the background waits for a row that a dead process's connection may still hold, before it tries others."""


class NewWrites(Protocol):
    """Makes the dual writes of one transactional id."""

    def __call__(self, transactional_id: str, *, recovery: bool = False) -> DualWriteCoordinator:
        """`recovery`: to resolve what a dead process left, and not to write."""


class PoolSettings:
    """Raises ConfigError for settings that are unknown, malformed, or not a choice for pools."""

    def __init__(
        self,
        prefix: str,
        *,
        max_writers: int,
        acquire_timeout_ms: int,
        lease_ms: int,
        lock_timeout_ms: int | None,
        resolve_timeout_ms: int,
        confirm: Confirm = "kafka",
        pause: PauseHook | None,
        producer_settings: Mapping[str, Any],
    ) -> None:
        if "transactional_id" in producer_settings:
            raise ConfigError("transactional_id is not a choice here: a pool makes its ids from the prefix")
        self.prefix: Final = checked_prefix(prefix)
        self.max_writers: Final = _at_least(1, "max_writers", max_writers)
        self.acquire_timeout_ms: Final = _at_least(0, "acquire_timeout_ms", acquire_timeout_ms)
        self.lease_ms: Final = _at_least(_LEAST_LEASE_MS, "lease_ms", lease_ms)
        self._lock_timeout_ms = lock_timeout_ms
        self._resolve_timeout_ms = resolve_timeout_ms
        self._kafka_follows_later = follows_later(confirm)
        self._pause = pause
        self._producer_settings = producer_settings
        self.serializers: Final = self._kafka(transactional_id_of(prefix, 0)).serializers

    def _kafka(self, transactional_id: str) -> KafkaSettings:
        return KafkaSettings(transactional_id, self._producer_settings)

    @staticmethod
    def new_owner() -> str:
        """Who holds leases: this process, for people, and something that no other one will ever be called."""
        return f"{os.getpid()}-{uuid.uuid4().hex}"

    def writes_maker(
        self,
        *,
        database: Database,
        new_kafka: Callable[[Mapping[str, Any]], KafkaParticipant],
        sleep: Callable[[float], Awaitable[None]],
        uninterrupted: Uninterrupted = direct,
    ) -> NewWrites:
        """What makes the dual writes of a slot, for threads or for tasks."""

        def new_writes(transactional_id: str, *, recovery: bool = False) -> DualWriteCoordinator:
            return DualWriteCoordinator(
                transactional_id,
                database=database,
                kafka=new_kafka(self._kafka(transactional_id).producer),
                sleep=sleep,
                lock_timeout_ms=_RECOVERY_LOCK_TIMEOUT_MS if recovery else self._lock_timeout_ms,
                resolve_timeout_ms=self._resolve_timeout_ms,
                pause=self._pause,
                uninterrupted=uninterrupted,
                kafka_follows_later=self._kafka_follows_later,
            )

        return new_writes


def _at_least(least: int, name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} takes a whole number of at least {least}, not {value!r}")
    return value
