"""Real Apache Kafkas that several folders share: each is started when it is first asked for.

`tests.support.parallel_runs` runs all their tests in one process, and ends them after the last one: an idle broker
takes CPU. Topics, groups and transactional ids are named by `tests.support.names`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.support.servers.apache_kafka import KAFKA_VERSION, PLAIN_LISTENER, ApacheKafka

OLDER_VERSION: Final = "3.9.2"
TIMEOUT_SCAN_MS: Final = 100
"""Interval at which brokers look for timed-out transactions in tests; Kafka's default is ten seconds."""

_PROPERTIES: Final = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(TIMEOUT_SCAN_MS),
    "group.consumer.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
    "share.coordinator.state.topic.num.partitions": "5",
}


class Kind(NamedTuple):
    """The differences between brokers."""

    version: str
    two_phase_commit: bool = False


TWO_PHASE_COMMIT: Final = Kind(KAFKA_VERSION, two_phase_commit=True)
"""Two-phase commit as far as a release has it, which takes unstable API versions."""
RELEASED: Final = Kind(KAFKA_VERSION)
OLDER: Final = Kind(OLDER_VERSION)

_running: dict[Kind, ApacheKafka] = {}


def real_kafka(
    kind: Kind,
    nodes: int = 1,
    listeners: Mapping[str, str] = PLAIN_LISTENER,
    properties: Mapping[str, str] | None = None,
) -> ApacheKafka:
    """A cluster of the caller's own, not started yet."""
    return ApacheKafka(
        version=kind.version,
        two_phase_commit=kind.two_phase_commit,
        nodes=nodes,
        listeners=listeners,
        properties={**_PROPERTIES, **(properties or {})},
    )


def shared_kafka(kind: Kind) -> ApacheKafka:
    """The shared cluster, running; a test that kills it starts it again. Raises ServerUnavailableError."""
    if kind not in _running:
        _running[kind] = real_kafka(kind).start()
    return _running[kind]


def stop_shared_kafkas() -> None:
    """End the running ones."""
    while _running:
        _running.popitem()[1].stop()
