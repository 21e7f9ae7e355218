"""Legal requests that name thousands of things: others are served in between.

Of each array by itself, with names that nothing has, test_every_array.py asks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.api import describe_configs
from dualwrite.broker_emulator.security.authorizer import STANDARD_AUTHORIZER
from dualwrite.broker_emulator.security.principal import ANONYMOUS
from tests.emulator.api.offset_requests import commit
from tests.emulator.api.raw_client import KEYS, RawClient, fetch_fields, milliseconds, plain_batch
from tests.emulator.hostile.requests import sized
from tests.emulator.hostile.turns import LONGEST, watched
from tests.emulator.inside import cluster_of
from tests.interop.raw_wire.sharing import Sharer
from tests.support.conditions import until

MANY = 7_500


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
    with Emulator(config=config, topics={"t": 3}) as broker, RawClient(broker.bootstrap_servers) as client:
        client.init_producer_id("x")
        yield broker


Send = Callable[[RawClient], Any]


def _list_offsets(client: RawClient) -> Any:
    rows = tuple({"partition_index": index % 3, "current_leader_epoch": -1, "timestamp": -1} for index in range(MANY))
    topics = ({"name": "t", "partitions": rows},)
    return client.call("list_offsets", 7, replica_id=-1, isolation_level=0, topics=topics).topics[0].partitions


def _offset_commit(client: RawClient) -> Any:
    rows = tuple(
        {"partition_index": index % 3, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        for index in range(MANY)
    )
    member = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    topics = ({"name": "t", "partitions": rows},)
    return client.call("offset_commit", 8, **member, topics=topics).topics[0].partitions


def _fetch(client: RawClient) -> Any:
    rows = tuple(
        {"partition": index % 3, "fetch_offset": 0, "partition_max_bytes": 1, "current_leader_epoch": -1}
        for index in range(MANY)
    )
    topics = ({"topic": "t", "topic_id": "t", "partitions": rows},)
    return client.call("fetch", 12, **{**fetch_fields(12, "t"), "topics": topics}).responses[0].partitions


def _produce(client: RawClient) -> Any:
    batch = plain_batch(b"v")
    rows = tuple({"index": index % 3, "records": batch} for index in range(MANY // 3))
    topics = ({"name": "t", "partition_data": rows},)
    options = {"transactional_id": None, "acks": -1, "timeout": milliseconds(1000)}
    return client.call("produce", 9, **options, topic_data=topics).responses[0].partition_responses * 3


ANY_ACL = {
    "resource_type_filter": 2,
    "resource_name_filter": None,
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def _share_fetch(client: RawClient) -> Any:
    sharer = Sharer(client, "g", "t")
    rows = tuple({"partition_index": index + 3, "acknowledgement_batches": ()} for index in range(MANY))
    topics = ({"topic_id": sharer.topic_id, "partitions": rows},)
    found = sharer.raw_fetch(0, topics=topics, max_wait_ms=0).responses[0].partitions
    sharer.close()
    return found


@pytest.mark.parametrize(
    "send",
    [_list_offsets, _offset_commit, _fetch, _produce, _share_fetch],
)
def test_other_clients_are_served_in_between(emulator: Emulator, send: Send) -> None:
    with RawClient(emulator.bootstrap_servers) as client, watched(emulator) as turns:
        assert len(send(client)) >= MANY
    assert turns.longest < LONGEST


@pytest.mark.parametrize("version", [7, 8])
def test_offsets_are_those_of_one_moment(emulator: Emulator, version: int) -> None:
    """Others commit offsets of the group while the response is made."""
    indexes = (0,) * MANY
    if version < 8:
        wanted: dict[str, Any] = {"topics": ({"name": "t", "partition_indexes": indexes},)}
    else:
        topics = ({"name": "t", "partition_indexes": indexes},)
        wanted = {"groups": ({"group_id": "moment", "topics": topics},)}
    with RawClient(emulator.bootstrap_servers) as client, RawClient(emulator.bootstrap_servers) as other:
        fetch = client.send("offset_fetch", version, group_id="moment", require_stable=False, **wanted)
        for offset in range(200):
            assert commit(other, "moment", offset, generation_id_or_member_epoch=-1) == 0
        response = client.receive("offset_fetch", version, fetch)
    rows = (response if version < 8 else response.groups[0]).topics[0].partitions
    assert len(rows) == MANY
    assert len({row.committed_offset for row in rows}) == 1


def test_a_short_request_with_a_long_response(emulator: Emulator) -> None:
    with RawClient(emulator.bootstrap_servers) as client:
        row = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        topics = ({"name": "t", "partitions": (row,)},)
        member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        for index in range(3000):
            client.send("offset_commit", 8, group_id=f"l{index}", **member, topics=topics)
        for _ in range(3000):
            client.receive_frame()
        with watched(emulator) as turns:
            assert len(client.call("list_groups", 4, states_filter=()).groups) >= 3000
    assert turns.longest < LONGEST


def test_an_answer_that_would_be_too_long_closes_the_connection(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each name costs some bytes in the request, and its settings some thousands in the response."""
    monkeypatch.setattr(describe_configs, "MAX_SETTINGS", 1000)
    resources = ({"resource_type": 2, "resource_name": "t", "configuration_keys": None},)
    options = {"include_synonyms": False, "include_documentation": False}
    with RawClient(emulator.bootstrap_servers) as client:
        (row,) = client.call("describe_configs", 4, resources=resources, **options).results
        assert row.error_code == ErrorCode.none
        assert 10 < len(row.configs) < 1000
        with pytest.raises(ConnectionError):
            client.call("describe_configs", 4, resources=resources * 1000, **options)


def test_many_acls() -> None:
    config = BrokerConfig(authorizer_class_name=STANDARD_AUTHORIZER, super_users=f"User:{ANONYMOUS.name}")
    with Emulator(config=config) as emulator, RawClient(emulator.bootstrap_servers) as client:
        acls = tuple(
            {
                "resource_type": 2,
                "resource_name": f"n{index % 3}",
                "resource_pattern_type": 3,
                "principal": f"User:u{index}",
                "host": "*",
                "operation": 3,
                "permission_type": 3,
            }
            for index in range(MANY)
        )
        assert {row.error_code for row in client.call("create_acls", 3, creations=acls).results} == {0}
        with watched(emulator) as turns:
            found = client.call("describe_acls", 3, **ANY_ACL)
        assert [len(resource.acls) for resource in found.resources] == [MANY // 3] * 3
    assert turns.longest < LONGEST


@pytest.mark.parametrize("place", ["header", "request"])
def test_millions_of_tagged_fields_are_refused(emulator: Emulator, place: str) -> None:
    """Each of them takes three bytes, and ten megabytes of them took seconds."""
    count = 3_300_000
    tags = b"\xa0\xb5\xc9\x01" + b"\xe8\x07\0" * count
    body = tags + b"\1\0\0\0" if place == "header" else b"\0" + b"\1\0\0" + tags
    frame = sized(struct.pack(">hhih", KEYS["metadata"], 12, 1, -1) + body)
    with watched(emulator) as turns, RawClient(emulator.bootstrap_servers) as client:
        try:
            client.send_bytes(frame)
            client.receive_frame()
        except ConnectionError:
            pass
        else:
            pytest.fail("the request was served")
    assert turns.longest < LONGEST


def test_large_requests_do_not_overtake_each_other(emulator: Emulator) -> None:
    """A connection serves one request after the other, however expensive they are."""
    with RawClient(emulator.bootstrap_servers) as client:
        keys = tuple(f"g{index}" for index in range(3000))
        large = client.send("find_coordinator", 4, key_type=0, coordinator_keys=keys)
        small = client.send("find_coordinator", 4, key_type=0, coordinator_keys=("g",))
        assert len(client.receive("find_coordinator", 4, large).coordinators) == 3000
        assert len(client.receive("find_coordinator", 4, small).coordinators) == 1


def test_a_client_leaves_while_its_request_is_decoded(emulator: Emulator) -> None:
    with RawClient(emulator.bootstrap_servers) as client:
        keys = tuple(f"g{index}" for index in range(MANY))
        client.send("find_coordinator", 4, key_type=0, coordinator_keys=keys)
    node = cluster_of(emulator).nodes[0]
    until(lambda: len(node.connections) == 1)
