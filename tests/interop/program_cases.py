"""Clients in other languages: the cases that their programs share by name, and the fixtures to run them.

A folder inherits them, with the fixtures of its conftest. Folders whose clients can do more have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.case_program import CaseError, CaseProgram
from tests.interop.conftest import Broker
from tests.interop.killed_brokers import RECORDS, SIZE, SOURCE, TARGET, KillableCluster
from tests.interop.logged_records import CODECS, committed_values_of, records_of, values_of
from tests.interop.secured_brokers import LIMITED_LOGIN, LOGINS, WRONG_LOGIN, Login, SecuredBroker
from tests.interop.wire import GROUP, Code, Wire
from tests.support.unavailable import skip

_FENCED = (Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED, "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
"""Codes and names of a fenced producer's error."""

Run = Callable[..., Any]


def program_of(start: Callable[[], CaseProgram]) -> Any:
    """A fixture: one program for all cases of a folder; they are skipped where it cannot be built."""

    @pytest.fixture(scope="session")
    def program() -> Iterator[CaseProgram]:
        try:
            program = start()
        except ServerUnavailableError as error:
            skip(error)
        yield program
        program.close()

    return program


@pytest.fixture
def run(program: CaseProgram, broker: Broker) -> Run:
    """Runs a case of the folder's program on the broker."""
    return lambda case, **inputs: program.run(case, servers=broker.bootstrap_servers, **inputs)


def write_committed_and_aborted(wire: Wire, topic: str, transactional_id: str) -> None:
    """Write three records: one aborted, one committed, one without a transaction."""
    identity = wire.init_ok(transactional_id)
    for value, commit in ((b"aborted", False), (b"committed", True)):
        assert wire.produce(transactional_id, identity, topic, 0, value).error == Code.NONE
        identity = wire.end(transactional_id, identity, commit=commit).identity
        wire.wait_until_settled(transactional_id)
    wire.write(topic, b"plain")


def check_compression(run: Run, wire: Wire, topic: str, group: str, codec: str) -> None:
    values = [f"value {number} " * 20 for number in range(100)]
    run("produce", topic=topic, values=values, codec=codec)
    written = records_of(wire, topic)
    assert {record.codec for record in written} == {codec}
    assert [(record.value or b"").decode() for record in written] == values
    wire.wait_for_coordinator(group, GROUP)
    assert [message["value"] for message in run("consume", topic=topic, group=group, count=100)] == values


def check_idempotence(run: Run, wire: Wire, topic: str) -> None:
    run("produce", topic=topic, values=["a", "b"], idempotent=True)
    written = records_of(wire, topic)
    assert [record.value for record in written] == [b"a", b"b"]
    assert written[0].producer_id >= 0


class RecordPrograms:
    """Records, read as a member of a group."""

    def test_keys_headers_and_timestamps(self, run: Run, wire: Wire, topic: str, group: str) -> None:
        run("produce", topic=topic, values=["v"], codec="none", key="k", header="1", timestampMs=1_700_000_000_000)
        (record,) = records_of(wire, topic)
        assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"1"),))
        assert record.timestamp_ms == 1_700_000_000_000
        wire.wait_for_coordinator(group, GROUP)
        read = {"partition": 0, "offset": 0, "key": "k", "value": "v", "headers": {"h": "1"}}
        expected = [{**read, "timestamp_ms": 1_700_000_000_000}]
        assert run("consume", topic=topic, group=group, count=1) == expected
        assert wire.offset_fetch(group, topic) == (Code.NONE, 1)

    @pytest.mark.parametrize("codec", CODECS)
    def test_compression(self, run: Run, wire: Wire, topic: str, group: str, codec: str) -> None:
        check_compression(run, wire, topic, group, codec)

    def test_large_messages(self, run: Run, wire: Wire, topic: str, group: str) -> None:
        value = "x" * 900_000
        run("produce", topic=topic, values=[value], codec="none")
        assert values_of(wire, topic) == [value.encode()]
        wire.wait_for_coordinator(group, GROUP)
        assert run("consume", topic=topic, group=group, count=1)[0]["value"] == value

    def test_members_share_partitions(self, run: Run, wire: Wire, topic: str, group: str) -> None:
        shared = f"{topic}-shared"
        wire.create_topic(shared, 4)
        wire.wait_for_coordinator(group, GROUP)
        assert run("members", topic=shared, group=group, partitions=4) == [2, 2]

    def test_reads_committed_records_only(
        self, run: Run, wire: Wire, topic: str, transactional_id: str, group: str
    ) -> None:
        write_committed_and_aborted(wire, topic, transactional_id)
        wire.wait_for_coordinator(group, GROUP)
        read = run("consume", topic=topic, group=group, count=2, committed=True)
        assert [message["value"] for message in read] == ["committed", "plain"]
        everything = run("consume", topic=topic, group=f"{group}-all", count=3, committed=False)
        assert [message["value"] for message in everything] == ["aborted", "committed", "plain"]


class TransactionPrograms:
    """Transactions with records, and with offsets."""

    def test_commit_and_abort(self, run: Run, wire: Wire, topic: str, transactional_id: str) -> None:
        transactions = [
            {"values": ["a", "b"], "commit": True},
            {"values": ["c"], "commit": False},
            {"values": ["d"], "commit": True},
        ]
        run("transactions", topic=topic, transactionalId=transactional_id, transactions=transactions)
        wire.wait_until_settled(transactional_id)
        assert wire.describe(transactional_id).state == "CompleteCommit"
        assert values_of(wire, topic) == [b"a", b"b", b"c", b"d"]
        assert committed_values_of(wire, topic) == [b"a", b"b", b"d"]

    def test_second_producer_fences_the_first(self, run: Run, wire: Wire, topic: str, transactional_id: str) -> None:
        assert run("fencing", topic=topic, transactionalId=transactional_id) in _FENCED
        wire.wait_until_settled(transactional_id)
        assert committed_values_of(wire, topic) == [b"of the second"]

    def test_offsets_in_transactions(self, run: Run, wire: Wire, topic: str, transactional_id: str, group: str) -> None:
        wire.wait_for_coordinator(group, GROUP)
        for offset, commit, committed in ((3, True, 3), (5, False, 3), (7, True, 7)):
            run("offsets", topic=topic, transactionalId=transactional_id, group=group, offset=offset, commit=commit)
            wire.wait_until_settled(transactional_id)
            assert wire.offset_fetch(group, topic, require_stable=True) == (Code.NONE, committed)


class CopyPrograms:
    """Transactions with records and the offsets of those that they were made of."""

    def test_copy_with_aborts_is_exactly_once(
        self, run: Run, wire: Wire, topic: str, transactional_id: str, group: str
    ) -> None:
        wire.create_topic(f"{topic}-copy")
        wire.wait_for_coordinator(group, GROUP)
        values = [b"%d" % number for number in range(60)]
        for value in values:
            wire.write(topic, value)
        names = {"topic": topic, "target": f"{topic}-copy", "transactionalId": transactional_id, "group": group}
        run("copy", count=60, size=7, committed=True, **names)
        wire.wait_until_settled(transactional_id)
        assert committed_values_of(wire, f"{topic}-copy") == values


class KilledPrograms:
    """The copy, while the broker is killed. With the fixture `killable`."""

    def test_copy_while_the_broker_is_killed_is_exactly_once(
        self, program: CaseProgram, killable: KillableCluster, group: str, transactional_id: str
    ) -> None:
        killable.prepare(group)
        names = {"topic": SOURCE, "target": TARGET, "transactionalId": transactional_id, "group": group}
        inputs = {"count": RECORDS, "size": SIZE, "committed": True}
        copying = program.start("copy", servers=killable.bootstrap_servers, **names, **inputs)
        killable.kill_while(copying)
        killable.check(group)


class SecurityPrograms:
    """TLS, SASL and access control. With the fixtures of `secured_brokers.py`."""

    not_authorized: str
    """In the client's error where a topic may not be written."""

    @staticmethod
    def send(program: CaseProgram, secured: SecuredBroker, login: Login, topic: str) -> None:
        security = secured.of_programs(login)
        program.run("produce", servers=secured.servers(login), security=security, topic=topic, values=["v"])

    @pytest.mark.parametrize("login", LOGINS, ids=str)
    def test_login(
        self, program: CaseProgram, secured: SecuredBroker, secured_wire: Wire, secured_topic: str, login: Login
    ) -> None:
        self.send(program, secured, login, secured_topic)
        assert values_of(secured_wire, secured_topic) == [b"v"]

    def test_wrong_password_is_refused(
        self, program: CaseProgram, secured: SecuredBroker, secured_wire: Wire, secured_topic: str
    ) -> None:
        with pytest.raises(CaseError, match="SASL"):
            self.send(program, secured, WRONG_LOGIN, secured_topic)
        assert values_of(secured_wire, secured_topic) == []

    def test_writing_without_the_right_is_refused(
        self, program: CaseProgram, secured: SecuredBroker, secured_wire: Wire, secured_topic: str
    ) -> None:
        with pytest.raises(CaseError, match=self.not_authorized):
            self.send(program, secured, LIMITED_LOGIN, secured_topic)
        assert values_of(secured_wire, secured_topic) == []
