"""The cases of every program, with franz-go, and those of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.conftest import Broker
from tests.interop.killed_brokers import killable
from tests.interop.logged_records import committed_values_of, values_of
from tests.interop.program_cases import (
    CopyPrograms,
    KilledPrograms,
    RecordPrograms,
    Run,
    SecurityPrograms,
    TransactionPrograms,
    check_idempotence,
)
from tests.interop.secured_brokers import certificates, secured, secured_topic, secured_wire
from tests.interop.wire import GROUP, Code, Wire

__all__ = ["TestKilledBroker", "TestSecurity", "certificates", "killable", "secured", "secured_topic", "secured_wire"]


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


class TestKilledBroker(KilledPrograms):
    """The cases of every program."""


class TestRecords(RecordPrograms):
    """The cases of every program."""

    def test_idempotent_producer(self, run: Run, wire: Wire, topic: str) -> None:
        """A franz-go producer is idempotent unless told otherwise."""
        check_idempotence(run, wire, topic)

    def test_fetch_sessions(self, run: Run, wire: Wire, topic: str) -> None:
        values = [str(number) for number in range(10)]
        assert run("sessions", topic=topic, values=values) == values
        assert values_of(wire, topic) == [value.encode() for value in values]

    def test_reads_without_a_group(self, run: Run, topic: str) -> None:
        run("produce", topic=topic, values=["a"], codec="none")
        assert [message["value"] for message in run("consume", topic=topic, count=1)] == ["a"]

    @pytest.mark.parametrize(
        "consumer_groups",
        # a member of KIP-848 heartbeats every five seconds, and learns of changes no sooner
        [pytest.param(False, id="classic"), pytest.param(True, id="KIP-848")],
    )
    def test_members_share_partitions(  # type: ignore[override]  # has a parameter more
        self, run: Run, wire: Wire, topic: str, group: str, consumer_groups: bool
    ) -> None:
        shared = f"{topic}-shared"
        wire.create_topic(shared, 4)
        wire.wait_for_coordinator(group, GROUP)
        found = run("members", topic=shared, group=group, partitions=4, consumerGroups=consumer_groups)
        assert found == {"counts": [2, 2], "protocol": "Stable"}


class TestSecurity(SecurityPrograms):
    """The cases of every program."""

    not_authorized = "TOPIC_AUTHORIZATION_FAILED"


class TestTransactions(TransactionPrograms, CopyPrograms):
    """The cases of every program."""

    def test_offsets_in_transactions(self, run: Run, wire: Wire, topic: str, transactional_id: str, group: str) -> None:
        """It adds offsets for members of a group only."""
        for value in (b"1", b"2", b"3", b"4", b"5"):
            wire.write(topic, value)
        wire.wait_for_coordinator(group, GROUP)
        committed = run("offsets_in_transactions", topic=topic, transactionalId=transactional_id, group=group)
        assert committed == [3, 3]
        assert wire.offset_fetch(group, topic, require_stable=True) == (Code.NONE, 3)

    def test_state_of_an_open_transaction(self, run: Run, wire: Wire, topic: str, transactional_id: str) -> None:
        assert run("transaction_state", topic=topic, transactionalId=transactional_id) == {
            "is_listed": True,
            "state": "Ongoing",
            "timeout_ms": 40_000,
            "partitions": [0],
            "producers": 1,
        }
        wire.wait_until_settled(transactional_id)
        assert committed_values_of(wire, topic) == [b"open"]
