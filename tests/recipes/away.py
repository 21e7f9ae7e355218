"""Kafka is away for a while, and the delivery that lets the blocks of a pool go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Direct
from dualwrite.errors import KafkaUnreachableError
from tests.support.conditions import until

AWAY: Final[dict[str, Any]] = {"delivery": Direct(when_kafka_is_away="store")}


@contextmanager
def kafka_away(emulator: Emulator) -> Iterator[None]:
    """Stop the only broker; it comes back on the same port with its log."""
    emulator.crash_node(0)
    yield
    emulator.start_node(0)


def recover_with_kafka_back(pool: Any) -> None:
    """Recover a blocking pool, again if half a second was too short to reach Kafka on a busy machine."""

    def has_recovered() -> bool:
        with suppress(KafkaUnreachableError):
            pool.recover()
            return True
        return False

    until(has_recovered)
