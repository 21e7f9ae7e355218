"""Consumer groups of the classic protocol, request by request: the same responses from both brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.broker_emulator.groups.records import (
    decode_group_key,
    decode_group_value,
    decode_offset_key,
    decode_offset_value,
    encode_group_value,
    encode_offset_value,
)
from dualwrite.broker_emulator.transactions.transaction_log import partition_for
from tests.emulator.api.group_requests import (
    SUBSCRIPTION,
    delete,
    delete_offset,
    describe,
    heartbeat,
    join,
    join_fields,
    leave,
    listed,
    sync,
)
from tests.emulator.api.offset_requests import commit
from tests.emulator.api.raw_client import RawClient, milliseconds
from tests.interop.conftest import Broker
from tests.interop.wire import GROUP, Code, Wire

OFFSETS_PARTITIONS = 5
NO_SUCH_MEMBER: dict[str, Any] = {"member_id": "nobody", "generation_id_or_member_epoch": 1}


@pytest.fixture
def client(broker: Broker, wire: Wire, group: str) -> Iterator[RawClient]:
    """A connection to the group's coordinator."""
    wire.wait_for_coordinator(group, GROUP)
    with RawClient(broker.bootstrap_servers) as connection:
        yield connection


def join_stable(client: RawClient, group: str, **values: Any) -> Any:
    joined = join(client, group, **values)
    answer = sync(client, joined, group_id=group, group_instance_id=values.get("group_instance_id"))
    assert (answer.error_code, answer.assignment) == (0, joined.member_id.encode())
    return joined


def claims(joined: Any, **changes: Any) -> dict[str, Any]:
    """A member's fields in an OffsetCommit."""
    return {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id, **changes}


def test_joining_syncing_and_leaving(client: RawClient, group: str) -> None:
    sent_away = client.call("join_group", 9, **join_fields(9, group))
    assert (sent_away.error_code, sent_away.generation_id, sent_away.protocol_name) == (79, -1, None)
    joined = join(client, group, sent_away.member_id)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, sent_away.member_id)
    assert (joined.protocol_type, joined.protocol_name, joined.skip_assignment) == ("consumer", "range", False)
    assert [member.metadata for member in joined.members] == [SUBSCRIPTION]
    assert sync(client, joined, group_id=group, protocol_name="other").error_code == 23
    assert sync(client, joined, group_id=group, protocol_name=None).error_code == 23
    assert sync(client, joined, group_id=group, protocol_type="other").error_code == 23
    assert sync(client, joined, group_id=group, group_instance_id="i").error_code == 25
    assert sync(client, joined, group_id=group, generation_id=7).error_code == 22
    assert sync(client, joined, group_id=group, member_id="nobody").error_code == 25
    answer = sync(client, joined, group_id=group)
    assert (answer.error_code, answer.protocol_type, answer.protocol_name) == (0, "consumer", "range")
    assert answer.assignment == joined.member_id.encode()
    assert leave(client, (joined.member_id, None), ("nobody", None), ("", "i"), group_id=group) == [0, 25, 25]
    assert heartbeat(client, joined, group_id=group, generation_id=2) == 25
    assert sync(client, joined, group_id=group).error_code == 25
    assert join(client, group, joined.member_id).error_code == 25


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"group_id": "", "session_timeout": milliseconds(1)}, 24),
        ({"session_timeout": milliseconds(5_999)}, 26),
        ({"session_timeout": milliseconds(1_800_001)}, 26),
        ({"protocol_type": ""}, 23),
        ({"protocols": ()}, 23),
        ({"member_id": "nobody"}, 25),
    ],
)
def test_join_refusals(client: RawClient, group: str, values: dict[str, Any], error: int) -> None:
    refused = client.call("join_group", 9, **{**join_fields(9, group), **values})
    member_id = values.get("member_id", "")
    assert (refused.error_code, refused.generation_id, refused.member_id) == (error, -1, member_id)


def test_members_keep_their_assignment_while_the_group_rebalances(client: RawClient, group: str) -> None:
    joined = join_stable(client, group)
    assert join(client, group, joined.member_id).generation_id == 2
    described = describe(client, group)
    (member,) = described.members
    assert described.group_state == "CompletingRebalance"
    assert (member.member_metadata, member.member_assignment) == (b"", joined.member_id.encode())


def test_heartbeats(client: RawClient, group: str) -> None:
    joined = join_stable(client, group)
    assert heartbeat(client, joined, group_id=group) == 0
    assert heartbeat(client, joined, group_id=group, generation_id=2) == 22
    assert heartbeat(client, joined, group_id=group, member_id="nobody") == 25
    assert heartbeat(client, joined, group_id=group, group_instance_id="i") == 25
    assert heartbeat(client, joined, group_id="unknown") == 25
    assert heartbeat(client, joined, group_id="") == 24


def test_a_needless_rejoin(client: RawClient, group: str) -> None:
    joined = join(client, group)
    assert join(client, group, joined.member_id).generation_id == 1  # its response may have been lost
    sync(client, joined, group_id=group)
    assert join(client, group, joined.member_id).generation_id == 2  # a leader may have its reasons


@pytest.mark.parametrize("version", [6, 8, 9])
def test_static_members(
    client: RawClient, wire: Wire, group: str, topic: str, transactional_id: str, version: int
) -> None:
    instance: dict[str, Any] = {"group_instance_id": "i"}
    first = join_stable(client, group, **instance)
    again = join(client, group, version=version, **instance)
    assert (again.error_code, again.generation_id) == (0, 1)
    if version >= 9:
        assert (again.leader, again.skip_assignment, len(again.members)) == (again.member_id, True, 1)
    else:
        assert (again.leader, len(again.members)) == (first.member_id, 0)
    assert sync(client, again, group_id=group, **instance, assignments=()).assignment == first.member_id.encode()
    assert heartbeat(client, first, group_id=group, **instance) == 82
    assert heartbeat(client, first, group_id=group) == 25
    assert heartbeat(client, again, group_id=group, **instance) == 0
    assert sync(client, first, group_id=group, **instance).error_code == 82
    assert join(client, group, first.member_id, **instance).error_code == 82
    assert commit(client, group, 1, topic=topic, **claims(first), **instance) == 82
    assert commit(client, group, 1, topic=topic, **claims(again), **instance) == 0
    producer = wire.init_ok(transactional_id)
    for member_id, error in ((first.member_id, 82), (again.member_id, 0)):
        member = {"member_id": member_id, "generation_id": 1, **instance}
        assert client.txn_offset_commit(transactional_id, producer, group, topic, 1, **member) == error
    assert leave(client, (first.member_id, "i"), ("", "i"), group_id=group) == [82, 0]


def test_a_static_member_with_other_protocols(client: RawClient, group: str) -> None:
    names = ("range", "sticky")
    both = tuple({"name": name, "metadata": b"m"} for name in names)
    join_stable(client, group, group_instance_id="i", protocols=both)
    again = join(client, group, group_instance_id="i", protocols=both[1:])
    assert (again.error_code, again.generation_id, again.protocol_name) == (0, 2, "sticky")


def test_commits(client: RawClient, group: str, topic: str) -> None:
    assert commit(client, group, 1, topic=topic, **NO_SUCH_MEMBER) == 69
    assert commit(client, group, 1, topic="no-such-topic", **NO_SUCH_MEMBER) == 3
    assert commit(client, group, 1, topic=topic, metadata="x" * 5_000, **NO_SUCH_MEMBER) == 69
    assert commit(client, group, 1, topic=topic, member_id="nobody") == 0  # of an empty group
    assert commit(client, group, 1, topic=topic, **NO_SUCH_MEMBER) == 25
    assert commit(client, group, 1, topic=topic, group_instance_id="i") == 0
    joined = join(client, group)
    assert commit(client, group, 2, topic=topic, **claims(joined)) == 27
    sync(client, joined, group_id=group)
    assert commit(client, group, 3, topic=topic, **claims(joined)) == 0
    assert commit(client, group, 4, topic=topic, **claims(joined, generation_id_or_member_epoch=0)) == 22
    assert commit(client, group, 4, topic=topic, **claims(joined, generation_id_or_member_epoch=-1)) == 22
    assert commit(client, group, 4, topic=topic, **claims(joined, member_id="nobody")) == 25
    assert commit(client, group, 4, topic=topic) == 25
    assert client.offset_fetch(group, topic).committed_offset == 3


def test_commits_in_transactions(client: RawClient, wire: Wire, group: str, topic: str, transactional_id: str) -> None:
    producer = wire.init_ok(transactional_id)

    def commit_in_transaction(offset: int, **values: Any) -> int:
        return int(client.txn_offset_commit(transactional_id, producer, group, topic, offset, **values))

    assert commit_in_transaction(1, generation_id=1, member_id="nobody") == 22
    assert commit_in_transaction(1, member_id="nobody") == 0  # of an empty group
    joined = join(client, group)
    member = {"member_id": joined.member_id, "generation_id": 1}
    assert commit_in_transaction(2, **member) == 0
    sync(client, joined, group_id=group)
    assert commit_in_transaction(3, **member) == 0
    assert commit_in_transaction(4, **{**member, "generation_id": 2}) == 22
    assert commit_in_transaction(4, **{**member, "member_id": "nobody"}) == 25
    assert commit_in_transaction(4, **member, group_instance_id="i") == 25
    assert commit_in_transaction(5) == 0
    assert wire.end_settled(transactional_id, producer, commit=True).error == Code.NONE
    assert wire.offset_fetch(group, topic) == (Code.NONE, 5)


def test_description(client: RawClient, group: str) -> None:
    unknown = describe(client, group)
    assert (unknown.error_code, unknown.group_state) == (69, "Dead")
    assert unknown.error_message == f"Group {group} not found."
    older = describe(client, group, version=5)
    assert (older.error_code, older.group_state) == (0, "Dead")
    joined = join(client, group)
    completing = describe(client, group)
    assert (completing.group_state, completing.protocol_type, completing.protocol_data) == (
        "CompletingRebalance",
        "consumer",
        "",
    )
    assert [(member.member_metadata, member.member_assignment) for member in completing.members] == [(b"", b"")]
    sync(client, joined, group_id=group)
    stable = describe(client, group)
    (member,) = stable.members
    assert (stable.group_state, stable.protocol_data) == ("Stable", "range")
    assert (member.client_id, member.client_host, member.group_instance_id) == ("raw", "/127.0.0.1", None)
    assert (member.member_metadata, member.member_assignment) == (SUBSCRIPTION, joined.member_id.encode())
    response = client.call("describe_groups", 6, groups=(group,), include_authorized_operations=True)
    assert response.groups[0].authorized_operations == 3400
    leave(client, (joined.member_id, None), group_id=group)
    empty = describe(client, group)
    assert (empty.group_state, empty.protocol_type, empty.members) == ("Empty", "consumer", ())


def test_listing(client: RawClient, group: str, topic: str) -> None:
    simple = f"{group}-simple"
    join_stable(client, group)
    assert commit(client, simple, 1, topic=topic) == 0
    stable, empty = (group, "consumer", "Stable", "classic"), (simple, "", "Empty", "classic")

    def mine(**filters: Any) -> list[tuple[str, str, str, str]]:
        return [row for row in sorted(listed(client, **filters)) if row[0] in (group, simple)]

    assert mine() == [stable, empty]
    assert mine(states_filter=("sTABLE ",)) == [stable]
    assert mine(states_filter=("Empty", "nonsense")) == [empty]
    assert mine(states_filter=("nonsense",)) == []
    assert mine(types_filter=("Classic",)) == [stable, empty]
    assert mine(types_filter=("consumer",)) == []


def test_deletion(client: RawClient, wire: Wire, group: str, topic: str) -> None:
    assert delete(client, group) == [69]
    assert delete_offset(client, topic, group) == (69, [])
    assert delete_offset(client, topic, "") == (24, [])
    joined = join_stable(client, group, protocols=subscription_to(topic))
    assert commit(client, group, 1, topic=topic, **claims(joined)) == 0
    assert delete(client, group) == [68]
    assert delete_offset(client, topic, group) == (0, [86])
    other = f"{topic}-other"
    wire.create_topic(other)
    assert commit(client, group, 1, topic=other, **claims(joined)) == 0
    assert [delete_offset(client, other, group) for _ in range(2)] == [(0, [0])] * 2
    assert delete_offset(client, "no-such-topic", group) == (0, [3])
    leave(client, (joined.member_id, None), group_id=group)
    assert delete_offset(client, topic, group, partition=7) == (0, [3])
    assert delete_offset(client, topic, group) == (0, [0])
    assert client.offset_fetch(group, topic).committed_offset == -1
    assert commit(client, group, 1, topic=topic) == 0
    assert delete(client, group) == [0]
    assert delete(client, group) == [69]
    assert client.offset_fetch(group, topic).committed_offset == -1


def subscription_to(topic: str) -> tuple[Any, ...]:
    name = topic.encode()
    metadata = b"\0\0" + (1).to_bytes(4) + len(name).to_bytes(2) + name + b"\xff\xff\xff\xff"
    return ({"name": "range", "metadata": metadata},)


def test_records(client: RawClient, wire: Wire, group: str, topic: str) -> None:
    """The emulator's codec reads the broker's bytes and writes the very same ones."""
    joined = join_stable(client, group, group_instance_id="i")
    assert commit(client, group, 1, topic=topic, metadata="m", **claims(joined), group_instance_id="i") == 0
    leave(client, ("", "i"), group_id=group)
    assert delete(client, group) == [0]
    groups, offsets = records_of(wire, group)
    created, stable, emptied, deleted = groups
    described = [None if value is None else decode_group_value(group, value) for value in groups]
    assert [what and (what.state, what.generation, len(what.members)) for what in described] == [
        ("Empty", 0, 0),
        ("Stable", 1, 1),
        ("Empty", 2, 0),
        None,
    ]
    for value, what in zip((created, stable, emptied), described, strict=False):
        assert what is not None
        assert encode_group_value(what) == value
    assert deleted is None
    committed, forgotten = offsets
    assert committed is not None
    assert encode_offset_value(decode_offset_value(committed)) == committed
    assert forgotten is None


def records_of(wire: Wire, group: str) -> tuple[list[bytes | None], list[bytes | None]]:
    """The values of the group's own records and of its offsets, in their order."""
    groups: list[bytes | None] = []
    offsets: list[bytes | None] = []
    for batch in wire.fetch("__consumer_offsets", partition=partition_for(group, OFFSETS_PARTITIONS)).batches:
        if batch.is_control:
            continue
        for key, value in zip(batch.keys, batch.values, strict=True):
            assert key is not None
            if decode_group_key(key) == group:
                groups.append(value)
            else:
                offset_key = decode_offset_key(key)
                if offset_key is not None and offset_key.group_id == group:
                    offsets.append(value)
    return groups, offsets
