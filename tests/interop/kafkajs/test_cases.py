"""The cases of every program, with kafkajs, and those of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apache_kafka.secured import LIMITED
from tests.interop.case_program import CaseProgram
from tests.interop.conftest import Broker
from tests.interop.killed_brokers import killable
from tests.interop.logged_records import committed_values_of, records_of, values_of
from tests.interop.program_cases import (
    CopyPrograms,
    KilledPrograms,
    RecordPrograms,
    Run,
    SecurityPrograms,
    TransactionPrograms,
    check_compression,
    check_idempotence,
)
from tests.interop.secured_brokers import SecuredBroker, certificates, secured, secured_topic, secured_wire
from tests.interop.wire import GROUP, Wire, wait_for

__all__ = ["TestKilledBroker", "TestSecurity", "certificates", "killable", "secured", "secured_topic", "secured_wire"]


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


class TestKilledBroker(KilledPrograms):
    """The cases of every program."""


class TestRecords(RecordPrograms):
    """The cases of every program."""

    @pytest.mark.parametrize("codec", ["gzip", "snappy"])
    def test_compression(self, run: Run, wire: Wire, topic: str, group: str, codec: str) -> None:
        check_compression(run, wire, topic, group, codec)

    def test_tombstones(self, run: Run, wire: Wire, topic: str, group: str) -> None:
        run("produce", topic=topic, values=[None], key="k")
        (record,) = records_of(wire, topic)
        assert (record.key, record.value) == (b"k", None)
        wire.wait_for_coordinator(group, GROUP)
        assert run("consume", topic=topic, group=group, count=1)[0]["value"] is None

    def test_idempotent_producer(self, run: Run, wire: Wire, topic: str) -> None:
        check_idempotence(run, wire, topic)

    @pytest.mark.parametrize("acks", [1, 0])
    def test_acks(self, run: Run, wire: Wire, topic: str, acks: int) -> None:
        run("produce", topic=topic, values=["a"], acks=acks)
        wait_for(lambda: values_of(wire, topic), lambda values: values == [b"a"])


class TestSecurity(SecurityPrograms):
    """The cases of every program."""

    not_authorized = "Not authorized to access topics"

    def test_rules(self, program: CaseProgram, secured: SecuredBroker, secured_topic: str) -> None:
        names = {"topic": secured_topic, "principal": f"User:{LIMITED}"}
        assert program.run("rules", servers=secured.bootstrap_servers, **names) == [1, 0]


class TestTransactions(TransactionPrograms, CopyPrograms):
    """The cases of every program."""

    def test_open_transaction_is_seen_by_uncommitted_readers(
        self, run: Run, wire: Wire, topic: str, transactional_id: str
    ) -> None:
        wire.wait_for_coordinator(f"{topic}-readers", GROUP)
        assert run("openTransaction", topic=topic, transactionalId=transactional_id, value="open") == ["open"]
        wire.wait_until_settled(transactional_id)
        assert committed_values_of(wire, topic) == [b"open"]
