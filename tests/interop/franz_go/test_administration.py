"""Administration with kadm, franz-go's administrator."""

from __future__ import annotations

from typing import Any

from tests.interop.conftest import Broker
from tests.interop.wire import GROUP, Wire


def test_topics(run: Any, topic: str) -> None:
    assert run("topics", topic=f"{topic}-made") == {
        "again": "TOPIC_ALREADY_EXISTS",
        "partitions": 4,
        "fewer": "INVALID_PARTITIONS",
        "deleted": "",
    }


def test_settings(run: Any, topic: str) -> None:
    assert run("settings", topic=topic) == {
        "values": ["604800000 DEFAULT_CONFIG", "5000 DYNAMIC_TOPIC_CONFIG", "604800000 DEFAULT_CONFIG"],
        "wrong": "INVALID_CONFIG",
    }


def test_records(run: Any, wire: Wire, topic: str) -> None:
    wire.write(topic, b"a", b"b", b"c")
    assert run("records", topic=topic) == [2, 3]


def test_groups(run: Any, wire: Wire, topic: str, group: str) -> None:
    wire.write(topic, b"a", b"b", b"c")
    wire.wait_for_coordinator(group, GROUP)
    expected = {"state": "Empty", "lag": 1, "deleted": "", "again": "GROUP_ID_NOT_FOUND"}
    assert run("groups", topic=topic, group=group) == expected


def test_quotas(run: Any, topic: str) -> None:
    assert run("quotas", topic=topic) == [1000, -1]


def test_log_directories(run: Any, wire: Wire, topic: str) -> None:
    wire.write(topic, b"x" * 1000)
    assert 1000 < run("log_directories", topic=topic) < 1200


def test_cluster(run: Any, broker: Broker) -> None:
    described = run("cluster")
    assert described["brokers"] == [broker.bootstrap_servers]
    assert described["cluster_id"]
