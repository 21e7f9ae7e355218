"""Administration with kafkajs."""

from __future__ import annotations

from typing import Any

from tests.interop.conftest import Broker
from tests.interop.wire import GROUP, Wire


def test_topics(run: Any, topic: str) -> None:
    assert run("topics", topic=f"{topic}-made") == {"created": True, "again": False, "listed": True, "partitions": 4}


def test_settings(run: Any, topic: str) -> None:
    assert run("settings", topic=topic) == [["604800000", True], ["5000", False]]


def test_offsets_and_records(run: Any, wire: Wire, topic: str) -> None:
    wire.write(topic, b"a", b"b", b"c")
    assert run("offsetsAndRecords", topic=topic) == [[0, 3], [2, 3]]


def test_groups(run: Any, wire: Wire, topic: str, group: str) -> None:
    wire.wait_for_coordinator(group, GROUP)
    expected = {"listed": True, "state": "Empty", "offset": 2, "left": False}
    assert run("groups", topic=topic, group=group) == expected


def test_cluster(run: Any, broker: Broker) -> None:
    described = run("cluster")
    assert described["brokers"] == [broker.bootstrap_servers]
    assert described["clusterId"]
