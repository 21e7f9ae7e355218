"""Consumer groups of KIP-848 with several members, step by step: the same responses from both brokers."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from dualwrite.broker_emulator.groups.consumer import records
from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup
from dualwrite.broker_emulator.groups.consumer.records import apply, decode_consumer_group_key, records_between
from dualwrite.broker_emulator.groups.records import decode_group_key
from dualwrite.broker_emulator.transactions.transaction_log import partition_for
from tests.emulator.api.group_requests import delete, delete_offset, describe, leave, listed
from tests.emulator.api.group_requests import heartbeat as classic_heartbeat
from tests.emulator.api.raw_client import RawClient, milliseconds
from tests.interop.conftest import Broker
from tests.interop.wire import GROUP, Code, Wire, wait_until

DIFFERENCES: Mapping[str, str] = {
    "hash of the topics in record 3": (
        "Kafka's is XXH3, which is not in the standard library; only a coordinator compares it"
    ),
    "order of partitions, members and topics": (
        "Kafka's is that of its hash tables, and of several assignments that are as good it chooses by that; here it "
        "is the order of ids and of joining"
    ),
    "an extra partition of `uniform`": (
        "Kafka gives it to members as they come out of its hash table, even if that moves partitions; here it stays "
        "with those who have it"
    ),
    "records of a conversion and of a replaced static member": (
        "Kafka writes the state in between too; here what is different in the end"
    ),
    "an empty consumer group that classic members join": (
        "its tombstones are written; Kafka leaves its records behind"
    ),
    "OffsetFetch with an epoch and a null member id": "25; Kafka stumbles over the null and answers -1",
    "regular expressions": (
        "RE2 matches them. As RE2/J, but it refuses nested repetitions whose counts multiply to more than 1,000, and "
        "patterns that need more than a mebibyte; of two mistakes in a pattern it may name the other"
    ),
    "group.consumer.assignment.interval.ms": "0; Kafka 4.4 puts assignments off for a second, so that many can join",
}
"""Known differences, and why."""

OFFSETS_PARTITIONS = 5


class Group:
    """The members of one group, by name, on one connection to its coordinator."""

    def __init__(self, client: RawClient, wire: Wire, group_id: str) -> None:
        self.client = client
        self.wire = wire
        self.group_id = group_id
        self.epochs: dict[str, int] = {}
        self.ids: dict[str, uuid.UUID] = {}
        self._letters: dict[uuid.UUID, str] = {}
        self._read = 0

    def create_topic(self, letter: str, count: int) -> None:
        self.wire.create_topic(self.topic(letter), count)
        self.ids[letter] = self.client.topic_id(self.topic(letter))
        self._letters[self.ids[letter]] = letter

    def topic(self, letter: str) -> str:
        return f"{self.group_id}-{letter}"

    def named(self, letter: str) -> dict[str, Any]:
        """The topic's name and id, as requests have them."""
        return {"name": self.topic(letter), "topic_id": self.ids[letter]}

    def request(self, member: str, epoch: int, **values: Any) -> Any:
        """A heartbeat; topics and owned partitions by letters. Joining subscribes to "a" unless told otherwise."""
        fields: dict[str, Any] = {"subscribed_topic_regex": None, "topic_partitions": None}
        if epoch == 0:
            joins = {"rebalance_timeout": milliseconds(20_000), "topic_partitions": ()}
            fields |= {"subscribed_topic_names": (self.topic("a"),), **joins}
        if "topics" in values:
            fields["subscribed_topic_names"] = tuple(self.topic(letter) for letter in values.pop("topics"))
        if "owned" in values:
            fields["topic_partitions"] = tuple(
                {"topic_id": self.ids[letter], "partitions": tuple(indexes)}
                for letter, indexes in values.pop("owned").items()
            )
        fields |= values
        fields.setdefault("rebalance_timeout", milliseconds(-1))
        names = {"group_id": self.group_id, "member_id": member, "member_epoch": epoch}
        return self.client.call("consumer_group_heartbeat", 1, **{**names, **fields})

    def live(self, member: str, **values: Any) -> tuple[int, dict[str, list[int]] | None]:
        """A heartbeat with the member's epoch (0 to join): return the new epoch, and the assignment if there is one."""
        answer = self.request(member, values.pop("epoch", self.epochs.get(member, 0)), **values)
        assert answer.error_code == 0, answer
        assert answer.member_id == member
        self.epochs[member] = answer.member_epoch
        return answer.member_epoch, None if answer.assignment is None else self._by_letter(answer.assignment)

    def refused(self, member: str, epoch: int, **values: Any) -> int:
        answer = self.request(member, epoch, **values)
        assert answer.error_code != 0
        return int(answer.error_code)

    def _by_letter(self, assignment: Any) -> dict[str, list[int]]:
        rows = assignment.topic_partitions
        return dict(sorted((self._letters[row.topic_id], sorted(row.partitions)) for row in rows))

    def described(self) -> Any:
        asked = {"group_ids": (self.group_id,), "include_authorized_operations": False}
        return self.client.call("consumer_group_describe", 1, **asked).groups[0]

    @property
    def state(self) -> tuple[str, int, int]:
        described = self.described()
        assert described.error_code == 0
        return described.group_state, described.group_epoch, described.assignment_epoch

    def members(self) -> dict[str, tuple[int, dict[str, list[int]], dict[str, list[int]]]]:
        """By member: its epoch, its assignment, and its target."""
        rows = self.described().members
        return {
            row.member_id: (row.member_epoch, self._by_letter(row.assignment), self._by_letter(row.target_assignment))
            for row in rows
        }

    def records(self) -> list[tuple[bytes, bytes | None]]:
        """The records of the group that were written since the last time."""
        found = []
        partition = partition_for(self.group_id, OFFSETS_PARTITIONS)
        while batches := self.wire.fetch("__consumer_offsets", partition=partition, offset=self._read).batches:
            for batch in batches:
                self._read = batch.next_offset
                if not batch.is_control:
                    found += [(key, value) for key, value in zip(batch.keys, batch.values, strict=True) if key]
        return [(key, value) for key, value in found if _group_of(key) == self.group_id]


def _group_of(key: bytes) -> str | None:
    decoded = decode_consumer_group_key(key)
    return decode_group_key(key) if decoded is None else decoded.group_id


@pytest.fixture
def members(broker: Broker, wire: Wire, group: str) -> Iterator[Group]:
    """A group without members yet, and topics "a" and "b" with 4 and 3 partitions."""
    wire.wait_for_coordinator(group, GROUP)
    with RawClient(broker.bootstrap_servers) as client:
        made = Group(client, wire, group)
        made.create_topic("a", 4)
        made.create_topic("b", 3)
        yield made


def test_joining_reconciling_and_leaving(members: Group) -> None:
    assert members.refused("m1", 5) == 69
    assert members.refused("m1", -1) == 69
    assert members.described().error_message == f"Group {members.group_id} not found."
    assert members.live("m1") == (2, {"a": [0, 1, 2, 3]})
    assert members.live("m1") == (2, None)
    assert members.state == ("Stable", 2, 2)
    full = {"rebalance_timeout": milliseconds(20_000), "topics": "a", "owned": {"a": [0, 1, 2, 3]}}
    assert members.live("m1", **full) == (2, {"a": [0, 1, 2, 3]})
    assert members.live("m1", epoch=0) == (2, {"a": [0, 1, 2, 3]})
    assert members.live("m2") == (3, {})
    assert members.state == ("Reconciling", 3, 3)
    assert members.live("m1") == (2, {"a": [0, 1]})
    assert members.members()["m1"] == (2, {"a": [0, 1, 2, 3]}, {"a": [0, 1]})
    assert members.live("m2") == (3, None)
    assert members.live("m1", owned={"a": [0, 1]}) == (3, None)
    assert members.live("m1", epoch=2, owned={"a": [0, 1]}) == (3, None)
    assert members.refused("m1", 2, owned={"a": [0, 1, 2]}) == 110
    assert members.refused("m1", 2) == 110
    assert members.refused("m1", 9) == 110
    assert members.live("m2") == (3, {"a": [2, 3]})
    assert members.state == ("Stable", 3, 3)
    assert members.request("m2", -1).member_epoch == -1
    assert members.state == ("Assigning", 4, 3)
    assert members.refused("m2", 3) == 25
    assert members.live("m1") == (4, {"a": [0, 1, 2, 3]})
    members.request("m1", -1)
    assert members.state == ("Empty", 5, 5)
    assert delete(members.client, members.group_id) == [0]
    assert members.described().error_code == 69


def test_subscriptions_that_change(members: Group) -> None:
    members.live("m1")
    members.live("m2")
    members.live("m1", owned={"a": [0, 1]})
    members.live("m2")
    assert members.live("m1", topics="ab")[0] == 3
    assert members.live("m2", topics="ab")[0] == 5
    assert members.live("m2", topics="") == (5, {})
    assert members.live("m2", owned={}) == (6, None)
    assert members.live("m1", owned={"a": [0]}) == (6, {"a": [0, 1, 2, 3], "b": [0, 1, 2]})
    assert members.state == ("Stable", 6, 6)


def test_topics_that_come_and_go(members: Group) -> None:
    assert members.live("m1", topics="az") == (2, {"a": [0, 1, 2, 3]})
    members.create_topic("z", 2)
    assert members.live("m1") == (3, {"a": [0, 1, 2, 3], "z": [0, 1]})


def test_static_members(members: Group) -> None:
    first: dict[str, Any] = {"instance_id": "i1"}
    assert members.live("s1", **first) == (2, {"a": [0, 1, 2, 3]})
    assert members.refused("s3", 0, **first) == 111
    assert members.refused("s3", 2, **first) == 82
    assert members.refused("s3", 2, instance_id="i9") == 25
    assert members.request("s1", -2, **first).member_epoch == -2
    assert members.state == ("Reconciling", 2, 2)
    assert members.refused("s1", 2, **first) == 110
    assert members.live("s3", **first) == (2, {"a": [0, 1, 2, 3]})
    assert members.state == ("Stable", 2, 2)
    assert members.refused("s1", 2, **first) == 82
    assert members.refused("s1", 2) == 25
    assert members.refused("s9", -1, **first) == 82
    assert members.request("s3", -1, **first).error_code == 0
    assert members.state == ("Empty", 3, 3)


def test_ranges_and_votes_for_assignors(members: Group) -> None:
    members.live("r1", server_assignor="range", topics="ab")
    members.live("r2", server_assignor="range", topics="ab")
    assert members.described().assignor_name == "range"
    targets = {name: target for name, (_, _, target) in members.members().items()}
    assert targets == {"r1": {"a": [0, 1], "b": [0, 1]}, "r2": {"a": [2, 3], "b": [2]}}
    members.live("r3", topics="b")
    targets = {name: target for name, (_, _, target) in members.members().items()}
    assert targets == {"r1": {"a": [0, 1], "b": [0]}, "r2": {"a": [2, 3], "b": [1]}, "r3": {"b": [2]}}
    members.live("r1", server_assignor="uniform")
    members.live("r2", server_assignor="uniform")
    described = members.described()
    assert (described.assignor_name, described.group_epoch) == ("uniform", 5)
    assert sorted(sum(map(len, target.values())) for _, _, target in members.members().values()) == [2, 2, 3]


def test_regular_expressions(members: Group) -> None:
    expression = f"{members.group_id}-[[:alpha:]]"
    by_expression: dict[str, Any] = {"subscribed_topic_names": None, "subscribed_topic_regex": expression}
    for wrong, complaint in (("[", "missing closing ]"), ("(?=a)", "invalid or unsupported Perl syntax")):
        answer = members.request("m1", 0, topics="", subscribed_topic_regex=wrong)
        assert answer.error_code == 128
        assert answer.error_message == f"SubscribedTopicRegex `{wrong}` is not a valid regular expression: {complaint}."
    assert members.live("m1", **by_expression) == (1, {})
    wait_until(lambda: members.state == ("Assigning", 2, 1))
    assert members.live("m1") == (2, {"a": [0, 1, 2, 3], "b": [0, 1, 2]})
    assert members.live("m2", **by_expression) == (3, {})
    assert members.described().members[0].subscribed_topic_regex == expression
    assert members.live("m2", topics="b", subscribed_topic_regex="")[0] == 4


@pytest.mark.parametrize(
    ("member", "epoch", "values", "error", "message"),
    [
        ("", 0, {}, 42, "MemberId can't be empty."),
        ("m", -3, {}, 42, "MemberEpoch is invalid."),
        ("m", -2, {}, 42, "InstanceId can't be null."),
        ("m", 0, {"instance_id": ""}, 42, "InstanceId can't be empty."),
        ("m", 0, {"rack_id": " "}, 42, "RackId can't be empty."),
        ("m", 0, {"rebalance_timeout": milliseconds(-1)}, 42, "RebalanceTimeoutMs must be provided in first request."),
        ("m", 0, {"owned": {"a": [1]}}, 42, "TopicPartitions must be empty when (re-)joining."),
        (
            "m",
            0,
            {"subscribed_topic_names": None},
            42,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (
            "m",
            0,
            {"server_assignor": "x"},
            112,
            "ServerAssignor x is not supported. Supported assignors: uniform, range.",
        ),
    ],
)
def test_requests_that_cannot_be(
    members: Group, member: str, epoch: int, values: dict[str, Any], error: int, message: str
) -> None:
    answer = members.request(member, epoch, **values)
    assert (int(answer.error_code), answer.error_message) == (error, message)


def commit(members: Group, member: str, epoch: int, *names: tuple[str, int], version: int = 9) -> set[int]:
    offset = {"committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = tuple(
        {**members.named(letter), "partitions": ({"partition_index": index, **offset},)}
        for letter, index in names or [("a", 0)]
    )
    claim = {"member_id": member, "generation_id_or_member_epoch": epoch}
    answer = members.client.call("offset_commit", version, group_id=members.group_id, topics=topics, **claim)
    return {int(row.error_code) for topic in answer.topics for row in topic.partitions}


def fetch(members: Group, member: str | None, epoch: int, version: int = 9) -> tuple[int, list[int]]:
    topics = ({**members.named("a"), "partition_indexes": (0,)},)
    asked = {"group_id": members.group_id, "member_id": member, "member_epoch": epoch, "topics": topics}
    (row,) = members.client.call("offset_fetch", version, groups=(asked,), require_stable=False).groups
    return int(row.error_code), [part.committed_offset for topic in row.topics for part in topic.partitions]


def test_offsets_of_members(members: Group) -> None:
    assert commit(members, "m1", 3) == {69}
    members.live("m1")
    for version in (9, 10):
        assert commit(members, "m1", 2, version=version) == {0}
        assert commit(members, "m1", 2, ("b", 0), version=version) == {0}
        assert commit(members, "m1", 3, version=version) == {113}
        assert commit(members, "m1", 1, version=version) == {113}
        assert commit(members, "m2", 2, version=version) == {25}
        assert commit(members, "", -1, version=version) == {25}
        assert fetch(members, "m1", 2, version) == (0, [7])
        assert fetch(members, "m1", 1, version) == (113, [])
        assert fetch(members, "m2", 2, version) == (25, [])
        assert fetch(members, None, -1, version) == (0, [7])
        assert fetch(members, "", -1, version) == (25, [])
    assert commit(members, "m1", 2, version=8) == {35}
    assert fetch(members, "m2", 1, version=8) == (0, [7])
    members.live("m2")
    members.live("m1")
    assert commit(members, "m1", 2, ("a", 3)) == {0}  # it has not given it up yet
    members.live("m1", owned={"a": [0, 1]})
    members.live("m2")
    assert commit(members, "m1", 2) == {0}  # an old epoch, of a partition that it has since then
    assert commit(members, "m1", 2, ("a", 3)) == {113}
    assert commit(members, "m1", 2, ("a", 0), ("a", 3)) == {113}
    assert commit(members, "m2", 2, ("a", 3)) == {113}
    assert commit(members, "m2", 3, ("a", 3)) == {0}
    assert delete(members.client, members.group_id) == [68]
    assert delete_offset(members.client, members.topic("a"), members.group_id) == (0, [86])
    assert delete_offset(members.client, members.topic("b"), members.group_id) == (0, [0])
    members.request("m1", -1)
    members.request("m2", -1)
    assert commit(members, "m1", -1) == {0}
    assert commit(members, "m1", 3) == {25}
    assert delete(members.client, members.group_id) == [0]
    assert fetch(members, None, -1) == (0, [-1])


def test_offsets_in_transactions(members: Group, wire: Wire, transactional_id: str) -> None:
    wire.wait_for_coordinator(transactional_id)
    producer = wire.init_ok(transactional_id)
    members.live("m1")

    def commit_in_transaction(member: str, epoch: int, **values: Any) -> int:
        where = (transactional_id, producer, members.group_id, members.topic("a"), 9)
        return int(members.client.txn_offset_commit(*where, member_id=member, generation_id=epoch, **values))

    assert commit_in_transaction("m1", 2) == 0
    assert commit_in_transaction("m1", 3) == 22
    assert commit_in_transaction("m1", 1) == 22
    assert commit_in_transaction("m1", -1) == 22
    assert commit_in_transaction("m2", 2) == 25
    assert commit_in_transaction("", -1) == 0
    assert commit_in_transaction("", -1, group_instance_id="i") == 25
    assert wire.end_settled(transactional_id, producer, commit=True).error == Code.NONE
    assert fetch(members, "m1", 2) == (0, [9])


def test_in_lists_and_in_descriptions_of_the_classic_kind(members: Group) -> None:
    members.live("m1")
    members.live("m2")

    def mine(**filters: Any) -> list[tuple[str, str, str]]:
        rows = listed(members.client, **filters)
        return [(protocol, state, kind) for group_id, protocol, state, kind in rows if group_id == members.group_id]

    assert mine() == mine(types_filter=("Consumer",)) == [("consumer", "Reconciling", "consumer")]
    assert mine(states_filter=("reconciling",)) == mine()
    assert mine(types_filter=("classic",)) == mine(states_filter=("Stable",)) == []
    unknown = describe(members.client, members.group_id)
    assert (unknown.error_code, unknown.group_state) == (69, "Dead")
    assert unknown.error_message == f"Group {members.group_id} is not a classic group."
    older = describe(members.client, members.group_id, version=5)
    assert (older.error_code, older.group_state) == (0, "Dead")


# online migration


def subscription(members: Group, owned: tuple[int, ...] = ()) -> bytes:
    name = members.topic("a").encode()
    topic = struct.pack(">h", len(name)) + name
    has = struct.pack(">i", 1) + topic + struct.pack(f">i{len(owned)}i", len(owned), *owned)
    return struct.pack(">hi", 1, 1) + topic + struct.pack(">i", -1) + (has if owned else struct.pack(">i", 0))


def assignment(members: Group, *indexes: int) -> bytes:
    name = members.topic("a").encode()
    topic = struct.pack(">h", len(name)) + name + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
    return struct.pack(">hi", 1, 1) + topic + struct.pack(">i", -1)


def join(members: Group, member_id: str = "", owned: tuple[int, ...] = (), **values: Any) -> Any:
    fields = {
        "group_id": members.group_id,
        "member_id": member_id,
        "session_timeout": milliseconds(10_000),
        "rebalance_timeout": milliseconds(20_000),
        "protocol_type": "consumer",
        "protocols": ({"name": "range", "metadata": subscription(members, owned)},),
    }
    answer = members.client.call("join_group", 9, **{**fields, **values})
    return join(members, answer.member_id, owned, **values) if answer.error_code == 79 else answer


def sync(members: Group, joined: Any, *indexes: int, **values: Any) -> tuple[int, bytes]:
    given = {"member_id": joined.member_id, "assignment": assignment(members, *indexes)}
    fields = {
        "group_id": members.group_id,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": (given,) if indexes else (),
    }
    answer = members.client.call("sync_group", 5, **{**fields, **values})
    return int(answer.error_code), answer.assignment


def beat(members: Group, joined: Any, **values: Any) -> int:
    return classic_heartbeat(members.client, joined, group_id=members.group_id, **values)


def test_a_refused_join_gets_no_member_id(members: Group) -> None:
    """In a classic group it gets back the id that it named."""
    members.live("m1", instance_id="i")
    refused = [
        join(members, "nobody", protocol_type="other"),
        join(members, "nobody", group_instance_id="i"),
        join(members, "nobody", group_instance_id="j"),
        join(members, protocol_type="other"),
    ]
    assert [(answer.error_code, answer.member_id) for answer in refused] == [(23, ""), (82, ""), (25, ""), (23, "")]


def test_upgrade_beside_classic_members_and_downgrade_without_consumer_members(members: Group) -> None:
    first = join(members)
    assert sync(members, first, 0, 1, 2, 3) == (0, assignment(members, 0, 1, 2, 3))
    members.records()
    assert members.live("m1") == (2, {})
    assert {row.member_id: row.member_type for row in members.described().members} == {first.member_id: 0, "m1": 1}
    assert beat(members, first) == 27
    assert beat(members, first, generation_id=9) == 22
    assert beat(members, first, member_id="m1", generation_id=2) == 25
    assert sync(members, first)[0] == 27
    again = join(members, first.member_id, owned=(0, 1, 2, 3))
    assert (again.generation_id, again.leader, again.protocol_name, len(again.members)) == (1, "", "range", 0)
    assert sync(members, again) == (0, assignment(members, 0, 1))
    assert [sync(members, again, **wrong)[0] for wrong in ({"protocol_name": "x"}, {"generation_id": 7})] == [23, 22]
    assert beat(members, again) == 27
    again = join(members, first.member_id, owned=(0, 1))
    assert (again.generation_id, sync(members, again)) == (2, (0, assignment(members, 0, 1)))
    assert beat(members, again) == 0
    assert members.live("m1") == (2, {"a": [2, 3]})
    assert members.request("m1", -1).error_code == 0  # the last one of the new protocol
    assert members.described().error_code == 69
    classic = describe(members.client, members.group_id)
    assert (classic.error_code, classic.group_state, len(classic.members)) == (0, "PreparingRebalance", 1)
    assert beat(members, again) == 27
    back = join(members, first.member_id)
    assert (back.generation_id, back.leader) == (3, first.member_id)


def test_groups_that_cannot_be_upgraded(members: Group) -> None:
    join(members, protocol_type="other")
    answer = members.request("m1", 0)
    assert answer.error_code == 69
    assert answer.error_message == (
        f"Cannot upgrade classic group {members.group_id} to consumer group because the group does not use the "
        "consumer embedded protocol."
    )


def test_classic_members_join_a_consumer_group(members: Group) -> None:
    members.live("m1")
    assert join(members, protocol_type="other").error_code == 23
    joined = join(members, group_instance_id="i")
    assert (joined.error_code, joined.generation_id, len(joined.member_id)) == (0, 3, 22)
    assert leave(members.client, ("nobody", "i"), ("", "i"), ("m1", None), group_id=members.group_id) == [82, 0, 0]
    assert members.state[0] == "Empty"
    assert join(members, "unknown").error_code == 25
    assert join(members).error_code == 0
    assert describe(members.client, members.group_id).error_code == 0
    assert members.refused("m1", 5) == 69


def test_a_classic_member_joins_again_for_a_new_target_only(members: Group) -> None:
    """Neither a newer group epoch (KAFKA-20272) nor a changed topic makes it join before there is a new target."""
    members.live("m1", topics="az")
    members.live("m2", topics="b")
    first = join(members)
    kept = members.live("m1")[1]
    assert kept is not None
    members.live("m1", owned=kept)
    joined = join(members, first.member_id)
    assert (joined.generation_id, beat(members, joined)) == (4, 0)
    members.request("m2", -1)
    assert beat(members, joined) == 0
    assert members.live("m1") == (5, None)
    assert beat(members, joined) == 27
    joined = join(members, first.member_id)
    assert (joined.generation_id, beat(members, joined)) == (5, 0)
    members.create_topic("z", 1)
    assert beat(members, joined) == 0
    assert members.live("m1")[0] == 6
    assert beat(members, joined) == 27


def test_a_static_member_changes_its_protocol_and_back(members: Group) -> None:
    instance: dict[str, Any] = {"group_instance_id": "i"}
    first = join(members, **instance)
    sync(members, first, 0, 1, 2, 3, **instance)
    assert members.live("m1", instance_id="i") == (1, {"a": [0, 1, 2, 3]})
    assert beat(members, first, **instance) == 82
    back = join(members, **instance)
    assert (back.error_code, back.generation_id) == (0, 1)
    assert members.described().error_code == 69
    assert sync(members, back, **instance) == (0, assignment(members, 0, 1, 2, 3))


# records


def test_records(members: Group, broker: Broker) -> None:
    """Either broker's records are read here as the same groups, and written by the codec in the very same bytes."""
    written: list[tuple[bytes, bytes | None]] = []
    kinds: list[list[int]] = []

    def wrote() -> None:
        new = members.records()
        written.extend(new)
        kinds.append([decoded.kind for key, _ in new if (decoded := decode_consumer_group_key(key)) is not None])

    steps: list[dict[str, Any]] = [
        {"member": "m1", "epoch": 0, "instance_id": "i", "rack_id": "r"},
        {"member": "m2", "epoch": 0, "topics": "ab"},
        {"member": "m1", "epoch": 2},
        {"member": "m1", "epoch": 2, "owned": {"a": [0]}},
        {"member": "m2", "epoch": -1},
        {"member": "m1", "epoch": -2, "instance_id": "i"},
        {"member": "m1", "epoch": -1, "instance_id": "i"},
    ]
    for step in steps:
        assert members.request(step.pop("member"), step.pop("epoch"), **step).error_code == 0
        wrote()
    assert delete(members.client, members.group_id) == [0]
    wrote()
    assert kinds[0] == [5, 3, 7, 6, 8]
    assert kinds[1][:2] == [5, 3]
    assert kinds[2][-1] == 8
    assert kinds[-4:] == [[8, 7, 5, 3], [8], [8, 7, 5, 3, 6], [6, 4, 3]]
    group: ConsumerGroup | None = None
    for key, value in written:
        decoded = decode_consumer_group_key(key)
        assert decoded is not None
        group = apply(group, decoded, value)
        if value is not None and group is not None:
            assert _encoded_again(group, decoded) == value
    assert group is None


def _encoded_again(group: Any, key: records.RecordKey) -> bytes | None:
    return dict(records_between(None, group)).get(key.encode()) or {
        records.GROUP: records.encode_group(group),
        records.TARGET_EPOCH: records.encode_target_epoch(group),
    }.get(key.kind)
