"""The two ways of waiting: a thread that blocks, or a task of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.blocking import Uninterrupted, direct, shield
from dualwrite.recipes.core.kafka_participant import AsyncKafkaParticipant, BlockingKafkaParticipant, KafkaParticipant


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the steps of a dual write need in order to wait."""

    new_kafka: Callable[[Mapping[str, Any]], KafkaParticipant]
    """Creates Kafka's side of one transactional id from the settings of its producer."""
    sleep: Callable[[float], Awaitable[None]]
    uninterrupted: Uninterrupted


THREADS: Final = Waiting(BlockingKafkaParticipant, blocking.sleep, direct)
TASKS: Final = Waiting(AsyncKafkaParticipant, asyncio.sleep, shield)
