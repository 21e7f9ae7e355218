"""Consumers of two libraries, as consume-transform-dual-write takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

Consumers = Callable[..., Any]


def kafka_python(
    bootstrap_servers: str, group: str, session_timeout_ms: int = 10_000, auto_offset_reset: str = "earliest"
) -> Any:
    library: Any = import_module("kafka")
    return library.KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id=group,
        auto_offset_reset=auto_offset_reset,
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=session_timeout_ms // 4,
        metadata_max_age_ms=500,  # its assignor gives nothing of topics that it has not heard of yet
    )


def confluent_kafka(
    bootstrap_servers: str,
    group: str,
    session_timeout_ms: int = 10_000,
    strategy: str = "range,roundrobin",
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    library: Any = import_module("confluent_kafka")
    return library.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": session_timeout_ms // 4,
            "partition.assignment.strategy": strategy,
            "log_level": 0,
            **settings,
        }
    )


def cooperative(bootstrap_servers: str, group: str, session_timeout_ms: int = 10_000) -> Any:
    return confluent_kafka(bootstrap_servers, group, session_timeout_ms, "cooperative-sticky")


def kip_848(bootstrap_servers: str, group: str, session_timeout_ms: int = 10_000) -> Any:
    """A consumer of the new group protocol, whose times are the broker's (`group.consumer.session.timeout.ms`)."""
    library: Any = import_module("confluent_kafka")
    return library.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def aiokafka_consumer(
    bootstrap_servers: str, group: str, session_timeout_ms: int = 10_000, auto_offset_reset: str = "earliest"
) -> Any:
    """A consumer to be started in a loop."""
    library: Any = import_module("aiokafka")
    return library.AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id=group,
        auto_offset_reset=auto_offset_reset,
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=session_timeout_ms // 4,
        metadata_max_age_ms=500,
    )


LIBRARIES: dict[str, Consumers] = {
    "kafka-python": kafka_python,
    "confluent-kafka": confluent_kafka,
    "confluent-kafka, cooperative": cooperative,
    "confluent-kafka, KIP-848": kip_848,
}
