"""Share groups (KIP-932), request by request: the same responses from both brokers."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.emulator.api.group_requests import delete
from tests.emulator.api.offset_requests import commit
from tests.emulator.api.raw_client import RawClient, batch_of
from tests.interop.conftest import Broker
from tests.interop.raw_wire.share_states import StateRequests
from tests.interop.raw_wire.sharing import Sharer, heartbeat, set_group
from tests.interop.wire import GROUP, Wire
from tests.support.conditions import until

DIFFERENCES: Mapping[str, str] = {
    "first ShareFetch": "Kafka reads the state of a partition in the background, so an answer without waiting is empty",
    "rows without records": "Kafka adds a row for some partitions that nothing was acquired of; clients ignore it",
    "transaction markers": "Kafka's ShareFetch acquires nothing beyond a marker that is not its first offset",
    "share.version 2": "dead letter queues are not served",
    "order of members and partitions": "Kafka's is that of its hash tables",
    "acquisition locks that time out": "Kafka writes a record for each offset, here one for all of them",
}
"""Known differences, and why."""

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
LONG_LOCK_MS = "60000"
"""Outlasts every wait here."""
UNKNOWN = "This server does not host this topic-partition."


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def sharer(client: RawClient, wire: Wire, group: str, topic: str) -> Sharer:
    """A member that has not joined yet; its group reads from the beginning."""
    wire.wait_for_coordinator(group, GROUP)
    set_group(client, group, auto_offset_reset="earliest")
    return Sharer(client, group, topic)


def another(sharer: Sharer) -> Sharer:
    return Sharer(sharer.client, sharer.group_id, sharer.topic)


def described(sharer: Sharer) -> Any:
    asked = {"group_ids": (sharer.group_id,), "include_authorized_operations": False}
    return sharer.client.call("share_group_describe", 1, **asked).groups[0]


# --- membership -------------------------------------------------------------------------------------------------------


def test_joining_and_leaving(sharer: Sharer) -> None:
    assert sharer.beat(5).error_message == f"Share group {sharer.group_id} not found."
    assert sharer.beat(-1).error_message == f"Group {sharer.group_id} not found."
    group = described(sharer)
    assert (group.error_code, group.error_message) == (69, f"Group {sharer.group_id} not found.")
    first = sharer.beat()
    assert (first.error_code, first.member_epoch, first.assignment.topic_partitions) == (0, 2, ())
    until(lambda: sharer.beat().member_epoch == 3)
    group = described(sharer)
    assert (group.group_state, group.assignor_name) == ("Stable", "simple")
    assert (group.group_epoch, group.assignment_epoch) == (3, 3)
    (member,) = group.members
    (assigned,) = member.assignment.topic_partitions
    assert (member.member_epoch, assigned.topic_name, assigned.partitions) == (3, sharer.topic, (0,))
    assert sharer.beat().assignment is None
    assert sharer.beat(topics=(sharer.topic,)).assignment.topic_partitions[0].partitions == (0,)
    assert sharer.beat(-1).member_epoch == -1
    group = described(sharer)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Empty", 4, 4)
    assert delete(sharer.client, sharer.group_id) == [0]
    assert described(sharer).error_code == 69


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"member_id": ""}, 42, None),
        ({"member_id": "x" * 37}, 42, None),
        ({"group_id": " "}, 42, "GroupId can't be empty."),
        ({"rack_id": " "}, 42, "RackId can't be empty."),
        ({"subscribed_topic_names": ()}, 42, "SubscribedTopicNames must be set in first request."),
        ({"subscribed_topic_names": None}, 42, "SubscribedTopicNames must be set in first request."),
        ({"epoch": -2}, 42, "MemberEpoch is invalid."),
    ],
)
def test_heartbeats_that_are_refused(sharer: Sharer, values: dict[str, Any], error: int, message: str | None) -> None:
    names = {"group_id": sharer.group_id, "member_id": "m", "epoch": 0, "subscribed_topic_names": ("t",), **values}
    answer = heartbeat(sharer.client, **names)
    assert (answer.error_code, answer.error_message) == (error, message)


def test_epochs(sharer: Sharer) -> None:
    sharer.join()
    known = sharer.epoch
    assert sharer.beat(known + 9).error_code == 110
    assert sharer.beat(known - 1).error_code == 0
    assert another(sharer).beat(known).error_code == 25
    assert sharer.beat(0).member_epoch == known


def test_two_members_share_one_partition(sharer: Sharer) -> None:
    sharer.join()
    other = another(sharer).join()
    assert other.epoch == 4
    sharer.beat()
    assert [[row.partitions for row in member.assignment.topic_partitions] for member in described(sharer).members] == [
        [(0,)],
        [(0,)],
    ]


def test_group_types_exclude_each_other(sharer: Sharer) -> None:
    sharer.join()
    client, group_id = sharer.client, sharer.group_id
    asked: dict[str, Any] = {"group_ids": (group_id,), "include_authorized_operations": False}
    answer = client.call("consumer_group_describe", 1, **asked).groups[0]
    assert (answer.error_code, answer.error_message) == (69, f"Group {group_id} is not a consumer group.")
    assert commit(client, group_id, 1, topic=sharer.topic) == 69
    listed = client.call("list_groups", 5, states_filter=(), types_filter=("Share",)).groups
    assert [(row.group_type, row.protocol_type, row.group_state) for row in listed if row.group_id == group_id] == [
        ("share", "share", "Stable")
    ]
    assert delete(client, group_id) == [68]


# --- records ----------------------------------------------------------------------------------------------------------


def test_acquiring_and_acknowledging(sharer: Sharer) -> None:
    sharer.put("a", "b", "c", "d", "e")
    sharer.put("f", "g")
    sharer.join()
    assert sharer.acquire() == [(0, 6, 1)]
    assert sharer.acknowledge([(0, 2, [ACCEPT, ACCEPT, RELEASE])]) == 0
    assert sharer.acquire() == [(2, 2, 2)]
    assert sharer.acknowledge([(0, 1, [ACCEPT])]) == 0  # done before: nothing to say
    assert sharer.acknowledge([(3, 5, [ACCEPT, REJECT, 0])]) == 0
    assert sharer.acknowledge([(3, 3, [ACCEPT])]) == 121
    assert sharer.acknowledge([(2, 2, [ACCEPT])]) == 0
    assert sharer.acknowledge([(3, 5, [ACCEPT])]) == 0  # the start offset is behind them now
    assert sharer.acknowledge([(6, 6, [RELEASE])]) == 0
    assert sharer.acquire() == [(6, 6, 2)]


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        ([(50, 60, [ACCEPT])], 42),
        ([(2, 9, [ACCEPT])], 42),
        ([(1, 0, [ACCEPT])], 42),
        ([(0, 0, [])], 42),
        ([(0, 1, [ACCEPT, ACCEPT, ACCEPT])], 42),
        ([(0, 0, [9])], 42),
        ([(0, 0, [RENEW])], 42),
        ([(1, 2, [ACCEPT]), (0, 0, [ACCEPT])], 42),
        ([(0, 1, [ACCEPT]), (1, 1, [ACCEPT])], 121),
        ([(0, 0, [ACCEPT]), (50, 50, [ACCEPT])], 42),
    ],
)
def test_acknowledgements_that_are_refused(sharer: Sharer, batches: Any, error: int) -> None:
    sharer.put("a", "b", "c")
    sharer.join()
    assert sharer.acquire() == [(0, 2, 1)]
    assert sharer.acknowledge(batches) == error
    assert sharer.acknowledge([(0, 2, [RELEASE])]) == 0, "nothing of it took effect"


def test_records_of_another_member(sharer: Sharer) -> None:
    sharer.put("a", "b", "c")
    other = another(sharer).join()
    sharer.join()
    assert sharer.acquire() == [(0, 2, 1)]
    assert other.fetch(max_wait_ms=50).acquired == []
    assert other.acknowledge([(0, 0, [ACCEPT])]) == 121
    assert sharer.close() == 0
    assert other.acquire() == [(0, 2, 2)]
    assert sharer.fetch(max_wait_ms=50).acquired == []
    assert sharer.acknowledge([(0, 0, [ACCEPT])]) == 121


def test_unknown_partitions(sharer: Sharer) -> None:
    sharer.put("a")
    sharer.join().acquire()
    assert sharer.acknowledge([(0, 0, [ACCEPT])], partition=9) == 3
    assert sharer.acknowledge([(0, 0, [ACCEPT])], topic_id=uuid.uuid4()) == 100


def test_sizes_of_acquired_ranges(sharer: Sharer) -> None:
    for batch in range(4):
        sharer.put(*(f"{batch}{number}" for number in range(5)))
    sharer.join()
    assert sharer.acquire(max_records=3) == [(0, 4, 1)]
    assert sharer.acquire(max_records=6, batch_size=2) == [(5, 9, 1), (10, 14, 1)]
    assert sharer.acquire(max_records=3, share_acquire_mode=1) == [(15, 17, 1)]
    assert sharer.acquire() == [(18, 19, 1)]


def test_delivery_count_limit(sharer: Sharer) -> None:
    """The numbers of records get smaller, and the last attempt is made with one record alone."""
    set_group(sharer.client, sharer.group_id, delivery_count_limit="5")
    sharer.put("a", "b", "c", "d", "e")
    sharer.join()
    assert sharer.acquire() == [(0, 4, 1)]
    for count in (2, 3):
        assert sharer.acknowledge([(0, 4, [RELEASE])]) == 0
        assert sharer.acquire() == [(0, 4, count)]
    assert sharer.acknowledge([(0, 4, [RELEASE])]) == 0
    assert sharer.acquire() == [(0, 1, 4)]
    assert sharer.acknowledge([(0, 1, [RELEASE])]) == 0
    assert sharer.acquire() == [(0, 0, 5)]
    assert sharer.acknowledge([(0, 0, [RELEASE])]) == 0
    assert sharer.acquire() == [(1, 1, 5)]


def test_latest_is_the_default(client: RawClient, wire: Wire, group: str, topic: str) -> None:
    wire.wait_for_coordinator(group, GROUP)
    sharer = Sharer(client, group, topic)
    sharer.put("before")
    sharer.join()
    sharer.fetch(max_wait_ms=500)
    sharer.put("after")
    assert sharer.acquire() == [(1, 1, 1)]


def all_acquired(sharer: Sharer, last: int) -> list[int]:
    """The offsets that are acquired until one of them is the last one."""
    found: list[int] = []
    while last not in found:
        found += [offset for first, end, _ in sharer.acquire() for offset in range(first, end + 1)]
    return found


def test_aborted_records(sharer: Sharer, wire: Wire, transactional_id: str) -> None:
    wire.wait_for_coordinator(transactional_id)
    wire.init_ok(transactional_id)  # waits until the coordinator has loaded
    set_group(sharer.client, sharer.group_id, isolation_level="read_committed")
    sharer.put("a")
    producer = sharer.client.init_producer_id(transactional_id)
    assert producer.error_code == 0
    batch = batch_of(producer, b"x", b"y")
    assert sharer.client.produce(sharer.topic, batch, transactional_id=transactional_id).error_code == 0
    sharer.put("b")
    sharer.join()
    assert sharer.acquire() == [(0, 0, 1)], "an open transaction"
    assert sharer.client.end_txn(transactional_id, producer, commit=False).error_code == 0
    assert all_acquired(sharer, 4) == [3, 4], "the second record, and the marker"


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_markers(sharer: Sharer, wire: Wire, transactional_id: str, isolation: str) -> None:
    wire.wait_for_coordinator(transactional_id)
    wire.init_ok(transactional_id)
    set_group(sharer.client, sharer.group_id, isolation_level=isolation)
    producer = sharer.client.init_producer_id(transactional_id)
    batch = batch_of(producer, b"x", b"y")
    assert sharer.client.produce(sharer.topic, batch, transactional_id=transactional_id).error_code == 0
    assert sharer.client.end_txn(transactional_id, producer, commit=True).error_code == 0
    until(lambda: sharer.client.fetch(sharer.topic).high_watermark == 3)
    sharer.put("b")
    sharer.join()
    assert all_acquired(sharer, 3) == [0, 1, 2, 3], "the marker too: the member says that it is a gap"


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_session_epochs(sharer: Sharer) -> None:
    sharer.join()
    assert sharer.raw_fetch(1).error_code == 122
    assert sharer.raw_fetch(-1).error_code == 122
    assert sharer.raw_acknowledge(1, {0: [(0, 0, [ACCEPT])]}).error_code == 122
    assert sharer.raw_acknowledge(-1, {}).error_code == 122
    assert sharer.raw_acknowledge(0, {}).error_code == 123
    assert sharer.raw_fetch(0, {0: [(0, 0, [ACCEPT])]}).error_code == 42
    assert sharer.raw_fetch(0, max_wait_ms=0).error_code == 0
    assert sharer.raw_fetch(5, max_wait_ms=0).error_code == 123
    assert sharer.raw_fetch(1, max_wait_ms=0).error_code == 0
    assert sharer.raw_fetch(1, max_wait_ms=0).error_code == 123
    assert sharer.raw_acknowledge(2, {}).error_code == 0
    assert sharer.raw_fetch(3, share_acquire_mode=7, max_wait_ms=0).error_code == -1
    assert sharer.raw_acknowledge(3, {}).error_code == 123
    assert sharer.raw_acknowledge(-1, {}).error_code == 0
    assert sharer.raw_fetch(4, max_wait_ms=0).error_code == 122


def elsewhere(sharer: Sharer, client: RawClient) -> Sharer:
    """Another member, on another connection."""
    return Sharer(client, sharer.group_id, sharer.topic)


def test_records_of_a_connection_that_ends(broker: Broker, sharer: Sharer) -> None:
    """They are delivered again before their locks time out."""
    set_group(sharer.client, sharer.group_id, record_lock_duration_ms=LONG_LOCK_MS)
    sharer.put("a", "b", "c")
    sharer.join()
    with RawClient(broker.bootstrap_servers) as client:
        gone = elsewhere(sharer, client).join()
        assert gone.acquire() == [(0, 2, 1)]
        assert gone.acknowledge([(0, 0, [ACCEPT])]) == 0
    assert sharer.acquire() == [(1, 2, 2)]
    assert gone.member_id in {member.member_id for member in described(sharer).members}, "it may connect again"
    back = Sharer(sharer.client, sharer.group_id, sharer.topic, gone.member_id)
    assert back.raw_fetch(gone.session_epoch).error_code == 122
    assert back.fetch(max_wait_ms=50).acquired == []


def test_an_older_connection_ends_no_session(broker: Broker, sharer: Sharer) -> None:
    set_group(sharer.client, sharer.group_id, record_lock_duration_ms=LONG_LOCK_MS)
    with RawClient(broker.bootstrap_servers) as client:
        before = elsewhere(sharer, client).join()
        before.fetch(max_wait_ms=0)
        now = Sharer(sharer.client, sharer.group_id, sharer.topic, before.member_id)
        now.fetch(max_wait_ms=0)
        sharer.put("a")
        assert now.acquire() == [(0, 0, 1)]
    other = another(sharer).join()
    assert other.fetch(max_wait_ms=500).acquired == []
    assert now.acknowledge([(0, 0, [ACCEPT])]) == 0


def test_latest_is_found_again_when_no_connection_is_left(
    broker: Broker, client: RawClient, wire: Wire, group: str, topic: str
) -> None:
    """No record was acknowledged, so the group has no stored position."""
    wire.wait_for_coordinator(group, GROUP)
    later = Sharer(client, group, topic)
    later.put("before")
    with RawClient(broker.bootstrap_servers) as first:
        gone = Sharer(first, group, topic).join()
        gone.fetch(max_wait_ms=500)
    later.put("between")
    later.join()
    later.fetch(max_wait_ms=500)
    later.put("after")
    assert later.acquire() == [(2, 2, 1)]


@pytest.mark.parametrize("fields", [{"member_id": ""}, {"member_id": None}, {"member_id": "x" * 37}])
def test_member_ids(sharer: Sharer, fields: dict[str, Any]) -> None:
    assert sharer.raw_fetch(0, **fields).error_code == 42
    assert sharer.raw_acknowledge(1, {}, **fields).error_code == 42


def test_renewals(sharer: Sharer) -> None:
    sharer.put("a", "b")
    sharer.join().acquire()
    none = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    assert sharer.acknowledge([(0, 0, [RENEW])], is_renew_ack=True) == 0
    assert sharer.raw_fetch(sharer.session_epoch, {0: [(0, 0, [RENEW])]}, is_renew_ack=True).error_code == 42
    part = sharer.fetch([(0, 0, [RENEW])], is_renew_ack=True, **none)
    assert (part.acknowledge_error, part.acquired) == (0, [])
    assert sharer.acknowledge([(0, 1, [ACCEPT])]) == 0
    set_group(sharer.client, sharer.group_id, renew_acknowledge_enable="false")


# --- offsets ----------------------------------------------------------------------------------------------------------


def offsets(sharer: Sharer, topics: Any = None) -> Any:
    rows = None if topics is None else tuple({"topic_name": name, "partitions": indexes} for name, indexes in topics)
    group = {"group_id": sharer.group_id, "topics": rows}
    (answer,) = sharer.client.call("describe_share_group_offsets", 1, groups=(group,)).groups
    assert answer.error_code == 0
    return {
        (topic.topic_name, row.partition_index): (int(row.error_code), row.start_offset, row.lag)
        for topic in answer.topics
        for row in topic.partitions
    }


def alter(sharer: Sharer, *altered: tuple[str, int, int]) -> Any:
    topics = tuple(
        {"topic_name": name, "partitions": ({"partition_index": index, "start_offset": offset},)}
        for name, index, offset in altered
    )
    return sharer.client.call("alter_share_group_offsets", 0, group_id=sharer.group_id, topics=topics)


def delete_offsets(sharer: Sharer, *names: str) -> Any:
    topics = tuple({"topic_name": name} for name in names)
    return sharer.client.call("delete_share_group_offsets", 0, group_id=sharer.group_id, topics=topics)


def test_describing_offsets(sharer: Sharer) -> None:
    sharer.put("a", "b", "c", "d")
    name = sharer.topic
    assert offsets(sharer) == {}
    assert offsets(sharer, [(name, (0,)), ("no-such-topic", (0,))]) == {
        (name, 0): (0, -1, -1),
        ("no-such-topic", 0): (0, -1, -1),
    }
    sharer.join()
    assert offsets(sharer) == {(name, 0): (0, -1, -1)}
    sharer.acquire()
    assert sharer.acknowledge([(0, 1, [RELEASE, ACCEPT])]) == 0
    assert offsets(sharer) == {(name, 0): (0, 0, 3)}


def test_altering_and_deleting_offsets(sharer: Sharer) -> None:
    sharer.put("a", "b", "c", "d")
    name = sharer.topic
    answer = delete_offsets(sharer, name)
    assert (answer.error_code, answer.error_message) == (69, f"Group {sharer.group_id} not found.")
    answer = alter(
        sharer,
        (name, 0, 2),
        ("no-such-topic", 0, 2),
    )
    assert answer.error_code == 0
    rows = {row.topic_name: row.partitions[0] for row in answer.responses}
    assert (rows[name].error_code, rows["no-such-topic"].error_code) == (0, 3)
    assert rows["no-such-topic"].error_message == UNKNOWN
    assert (described(sharer).group_state, described(sharer).group_epoch) == ("Empty", 1)
    assert offsets(sharer) == {(name, 0): (0, 2, 2)}
    sharer.join()
    answer = alter(sharer, (name, 0, 2))
    assert (answer.error_code, answer.error_message) == (68, "The group is not empty.")
    assert delete_offsets(sharer, name).error_code == 68
    assert sharer.acquire() == [(2, 3, 1)]
    sharer.close()
    sharer.beat(-1)
    answer = delete_offsets(sharer, name, "no-such-topic")
    assert [(row.topic_name, row.error_code) for row in answer.responses] == [(name, 0), ("no-such-topic", 3)]
    assert offsets(sharer) == {}


# --- the share coordinator --------------------------------------------------------------------------------------------


def kafka_id(topic_id: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


@pytest.fixture
def states(client: RawClient, wire: Wire, group: str, topic: str) -> StateRequests:
    topic_id = client.topic_id(topic)
    key = f"{group}:{kafka_id(topic_id)}:0"

    def is_found() -> bool:
        found = client.call("find_coordinator", 6, key_type=2, coordinator_keys=(key,))
        return bool(found.coordinators[0].error_code == 0)

    until(is_found)
    states = StateRequests(client, group, topic_id)
    until(lambda: states.send("read", leader_epoch=-1).error_code not in (14, 15, 16))  # its coordinator is there
    return states


def test_coordinator_keys(states: StateRequests) -> None:
    for key in ("nonsense", f"g:{states.topic_id}:0", "g:x:0", f"g:{kafka_id(states.topic_id)}:x"):
        found = states.client.call("find_coordinator", 6, key_type=2, coordinator_keys=(key,))
        assert found.coordinators[0].error_code == 42, key


def test_state_that_does_not_exist(states: StateRequests) -> None:
    read = states.send("read", leader_epoch=0)
    assert (read.error_code, read.error_message) == (
        42,
        "Read operation on uninitialized share partition not allowed.",
    )
    summary = states.send("summary", leader_epoch=0)
    assert (summary.error_code, summary.start_offset, summary.delivery_complete_count) == (0, -1, -1)
    assert states.write(0, 0, 0) == 42
    assert states.send("delete").error_code == 0
    initial: dict[str, Any] = {"state_epoch": 1, "start_offset": -1}
    assert states.send("initialize", partition=7, **initial).error_code == 3
    assert states.send("initialize", partition=-1, **initial).error_code == 42
    assert states.send("initialize", topic_id=uuid.uuid4(), **initial).error_code == 3
    assert states.send("summary", topic_id=uuid.uuid4(), leader_epoch=0).error_code == 3
    assert states.send("delete", topic_id=uuid.uuid4()).error_code == 3


@pytest.mark.parametrize(
    ("name", "values", "then", "code"),
    [
        ("initialize", {"state_epoch": 2, "start_offset": -1}, {"state_epoch": 1, "start_offset": -1}, 124),
        ("read", {"leader_epoch": 2}, {"leader_epoch": 1}, 74),
        ("summary", {"leader_epoch": 2}, {"leader_epoch": 2}, 0),
        ("delete", {}, {}, 0),
    ],
)
def test_a_partition_named_twice_is_answered_once(
    states: StateRequests, name: str, values: dict[str, int], then: dict[str, int], code: int
) -> None:
    assert states.send("initialize", state_epoch=1, start_offset=-1).error_code == 0
    assert states.send_all(name, [values, then], [then]) == [[code]]


def test_epochs_fence_writers_and_readers(states: StateRequests) -> None:
    assert states.send("initialize", state_epoch=2, start_offset=-1).error_code == 0
    assert states.send("initialize", state_epoch=1, start_offset=-1).error_code == 124
    assert states.send("initialize", state_epoch=2, start_offset=5).error_code == 0
    assert states.send("read", leader_epoch=3).start_offset == 5
    assert states.send("read", leader_epoch=2).error_code == 74
    assert states.send("read", leader_epoch=-1).error_code == 42
    assert states.write(2, 3, 5, (5, 7, 0, 1), (8, 8, 2, 1)) == 0
    assert states.write(2, 2, 5) == 74
    assert states.write(1, 3, 5) == 124
    assert states.write(2, 4, -1, (6, 6, 4, 2)) == 0
    assert [_row(batch) for batch in states.send("read", leader_epoch=4).state_batches] == [
        (5, 5, 0, 1),
        (6, 6, 4, 2),
        (7, 7, 0, 1),
        (8, 8, 2, 1),
    ]
    summary = states.send("summary", leader_epoch=4)
    assert (summary.state_epoch, summary.leader_epoch, summary.start_offset) == (2, 4, 5)
    assert states.write(2, 4, 7) == 0
    read = states.send("read", leader_epoch=4)
    assert (read.start_offset, [_row(batch) for batch in read.state_batches]) == (7, [(7, 7, 0, 1), (8, 8, 2, 1)])
    assert states.send("delete").error_code == 0
    assert states.send("read", leader_epoch=4).error_code == 42


def _row(batch: Any) -> tuple[int, int, int, int]:
    return batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count
