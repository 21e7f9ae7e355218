"""Kafka's own share consumer, and its group in Admin and the tools (KIP-932), with the clients of 4.4.0."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.emulator.api.raw_client import RawClient
from tests.interop.conftest import Broker
from tests.interop.java.client import KafkaScripts, share_cases
from tests.interop.raw_wire.sharing import set_group
from tests.interop.wire import GROUP, Code, Wire
from tests.support.unavailable import skip

_TIMEOUT_S = 180
LONG_LOCK_MS = "60000"
"""Outlasts a member's wait for records."""


class Members:
    """Runs the cases of `ShareCases.java` for one group and topic."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.group = group
        self.topic = topic
        self._command = share_cases()

    def set(self, **settings: str) -> None:
        with RawClient(self.bootstrap_servers) as client:
            set_group(client, self.group, **settings)

    def run(self, case: str, *values: str) -> Any:
        """Run a case to its end; return its output."""
        done = subprocess.run(self._of(case, *values), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def start(self, case: str, *values: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self._of(case, *values), stdout=subprocess.PIPE, text=True)

    def _of(self, case: str, *values: str) -> list[str]:
        return [*self._command, case, self.bootstrap_servers, self.group, self.topic, *values]


@pytest.fixture
def members(broker: Broker, wire: Wire, group: str, topic: str) -> Members:
    try:
        members = Members(broker.bootstrap_servers, group, topic)
    except ServerUnavailableError as error:
        skip(error)
    wire.wait_for_coordinator(group, GROUP)
    members.set(auto_offset_reset="earliest")
    return members


def put(wire: Wire, topic: str, *values: int | str) -> None:
    encoded = [str(value).encode() for value in values]
    wire.write(topic, *encoded)


def test_two_members_accept_release_and_reject(members: Members, wire: Wire) -> None:
    """Released records are delivered as often as the limit says."""
    members.set(delivery_count_limit="3")
    put(wire, members.topic, *range(8))
    seen = members.run("explicit", str(2 * (1 + 2 + 1 + 3)))
    by_rule = {0: [1], 1: [1, 2], 2: [1], 3: [1, 2, 3]}
    assert seen == {"end": [1]} | {str(number): by_rule[number % 4] for number in range(8)}


def test_implicit_acknowledgement(members: Members, wire: Wire) -> None:
    put(wire, members.topic, *range(6))
    assert members.run("implicit", "5") == [[str(number), 1] for number in range(6)]
    put(wire, members.topic, "end")
    assert members.run("implicit", "end") == [["end", 1]]


def test_killed_member(members: Members, wire: Wire) -> None:
    """Its records are delivered again although no lock has timed out."""
    members.set(record_lock_duration_ms=LONG_LOCK_MS)
    put(wire, members.topic, *range(4))
    killed = members.start("hold", "4")
    assert killed.stdout is not None
    try:
        assert json.loads(killed.stdout.readline()) == ["0", "1", "2", "3"]
    finally:
        killed.kill()
        killed.wait()
        killed.stdout.close()
    assert members.run("implicit", "3") == [[str(number), 2] for number in range(4)]


def test_aborted_records_are_not_delivered(members: Members, wire: Wire, transactional_id: str) -> None:
    members.set(isolation_level="read_committed")
    wire.wait_for_coordinator(transactional_id)
    identity = wire.init_ok(transactional_id)
    put(wire, members.topic, "before")
    assert wire.produce(transactional_id, identity, members.topic, 0, b"aborted").error == Code.NONE
    wire.end_settled(transactional_id, identity, commit=False)
    put(wire, members.topic, "after")
    assert members.run("implicit", "after") == [["before", 1], ["after", 1]]


def test_administration(members: Members, wire: Wire) -> None:
    put(wire, members.topic, "0", "1", "2")
    topic, group = members.topic, members.group
    not_empty = "GroupNotEmptyException: The group is not empty."
    unknown = "UnknownTopicOrPartitionException: This server does not host this topic-partition."
    altering = "Failed altering group offsets for the following partitions:"
    assert members.run("admin") == {
        "state": "Stable",
        "assignment": f"[{topic}-0]",
        "alter with a member": f"{not_empty} {altering} [{topic}-0]",
        "delete offsets with a member": not_empty,
        "delete with a member": not_empty,
        "state after": "Empty",
        "offset": "0, lag 0",  # the start offset that is stored moves later than the records are acknowledged
        "alter": "done",
        "offset altered": "1, lag 2",
        "alter of no topic": f"{unknown} {altering} [no-such-0]",
        "delete offsets of no topic": unknown,
        "delete offsets": "done",
        "offset deleted": "none",
        "delete": "done",
        "delete again": "GroupIdNotFoundException: The group id does not exist.",
        "describe deleted": f"GroupIdNotFoundException: Group {group} not found.",
    }


def offset_and_lag(scripts: KafkaScripts, members: Members) -> list[str]:
    described = scripts.ok("kafka-share-groups", "--describe", "--offsets", "--group", members.group)
    (line,) = (line for line in described.splitlines() if members.topic in line)
    return line.split()[3:]


def test_tools(members: Members, scripts: KafkaScripts, wire: Wire) -> None:
    put(wire, members.topic, "0", "1", "2")
    read = ["--topic", members.topic, "--group", members.group, "--max-messages", "3", "--timeout-ms", "30000"]
    assert scripts.ok("kafka-console-share-consumer", *read).split() == ["0", "1", "2"]
    named = ["--group", members.group]
    assert members.group in scripts.ok("kafka-share-groups", "--list").split()
    assert "Empty" in scripts.ok("kafka-share-groups", "--describe", "--state", *named)
    assert offset_and_lag(scripts, members) == ["0", "0"]
    of_topic = [*named, "--topic", members.topic]
    scripts.ok("kafka-share-groups", "--reset-offsets", "--to-earliest", "--execute", *of_topic)
    assert offset_and_lag(scripts, members) == ["0", "3"]
    scripts.ok("kafka-share-groups", "--delete-offsets", *of_topic)
    scripts.ok("kafka-share-groups", "--delete", *named)
    assert members.group not in scripts.ok("kafka-share-groups", "--list").split()
