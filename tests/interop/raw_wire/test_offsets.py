"""Offsets committed in transactions without a group membership, the same on both brokers (KIP-98, KIP-447, KIP-890)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulator.api.raw_client import RawClient
from tests.interop.conftest import Broker, every_broker
from tests.interop.wire import GROUP, Code, Identity, Wire


@pytest.fixture(autouse=True)
def _group_coordinator(wire: Wire, group: str) -> None:
    wire.wait_for_coordinator(group, GROUP)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_follow_the_transaction(
    wire: Wire, transactional_id: str, topic: str, group: str, version: int, commit: bool
) -> None:
    identity = wire.init_ok(transactional_id)
    if version < 5:
        assert wire.add_offsets(transactional_id, identity, group) == Code.NONE
    assert wire.txn_offset_commit(transactional_id, identity, group, topic, 7, version=version) == Code.NONE
    assert list(wire.describe(transactional_id).topics) == ["__consumer_offsets"]
    assert wire.offset_fetch(group, topic) == (Code.NONE, -1)
    assert wire.offset_fetch(group, topic, require_stable=True) == (Code.UNSTABLE_OFFSET_COMMIT, -1)
    end_version = 5 if version == 5 else 4
    answer = wire.end_settled(transactional_id, identity, commit=commit, version=end_version)
    assert answer.error == Code.NONE
    committed = 7 if commit else -1
    assert wire.offset_fetch(group, topic, require_stable=True) == (Code.NONE, committed)
    assert wire.offset_fetch(group, topic) == (Code.NONE, committed)


@pytest.mark.parametrize("version", range(6))
def test_an_epoch_that_the_group_partition_knows_to_be_over(
    wire: Wire, transactional_id: str, topic: str, group: str, version: int
) -> None:
    wire.wait_for_coordinator(group, GROUP)
    zombie = wire.init_ok(transactional_id)
    identity = wire.init_ok(transactional_id)
    assert wire.txn_offset_commit(transactional_id, identity, group, topic, 7) == Code.NONE
    late = wire.txn_offset_commit("nobody", zombie, group, topic, 9, version=version)
    assert late == Code.INVALID_PRODUCER_EPOCH


@every_broker
@pytest.mark.parametrize("version", range(5))
def test_offsets_of_a_group_that_was_not_added(
    wire: Wire, transactional_id: str, topic: str, group: str, version: int
) -> None:
    refused = Code.INVALID_TXN_STATE if version < 4 else Code.TRANSACTION_ABORTABLE
    identity = wire.init_ok(transactional_id)
    assert wire.txn_offset_commit(transactional_id, identity, group, topic, 7, version=version) == refused
    assert wire.describe(transactional_id).state == "Empty"


def test_the_order_of_an_answer(broker: Broker, topic: str, group: str) -> None:
    """Missing topics come first, then the others in the order of the request; each topic is named once."""

    def of(name: str, *partitions: int) -> dict[str, Any]:
        committed = {"committed_offset": 1, "committed_metadata": ""}
        return {"name": name, "partitions": tuple({"partition_index": index, **committed} for index in partitions)}

    asked = (of(topic, 0, 7), of(f"{topic}-missing", 0), of(topic, 8))
    with RawClient(broker.bootstrap_servers) as client:
        answer = client.call("offset_commit", 9, group_id=group, member_id="", topics=asked)
        known_first = client.call("offset_commit", 9, group_id=group, member_id="", topics=(of(topic, 0), asked[1]))
    assert in_order(answer) == [(topic, [(7, 3), (8, 3), (0, 0)]), (f"{topic}-missing", [(0, 3)])]
    assert in_order(known_first) == [(f"{topic}-missing", [(0, 3)]), (topic, [(0, 0)])]


def in_order(answer: Any) -> list[tuple[str, list[tuple[int, int]]]]:
    return [
        (topic.name, [(row.partition_index, int(row.error_code)) for row in topic.partitions])
        for topic in answer.topics
    ]


@pytest.mark.parametrize("version", range(6))
def test_refusals(wire: Wire, transactional_id: str, topic: str, group: str, version: int) -> None:
    identity = wire.init_ok(transactional_id)
    if version < 5:
        assert wire.add_offsets(transactional_id, identity, group) == Code.NONE

    def commit(who: Identity, txn: str = transactional_id, **changes: object) -> Code | int:
        settings = {"group": group, "topic": topic, "offset": 7, "version": version} | changes
        return wire.txn_offset_commit(txn, who, **settings)  # type: ignore[arg-type]

    assert commit(identity.bumped()) == Code.INVALID_PRODUCER_EPOCH
    assert commit(Identity(identity.producer_id + 100_000, 0)) == Code.INVALID_PRODUCER_ID_MAPPING
    assert commit(identity, "nobody-has-this-id") == Code.INVALID_PRODUCER_ID_MAPPING
    assert commit(identity, topic="no-such-topic") == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(identity, group="") == Code.INVALID_GROUP_ID
    if version >= 3:
        assert commit(identity, generation=3, member="m") == Code.ILLEGAL_GENERATION
    assert commit(identity, metadata="x" * 4097) == 12
    assert commit(identity) == Code.NONE
    assert wire.end_settled(transactional_id, identity, commit=True, version=5 if version == 5 else 4).error == 0
    assert wire.offset_fetch(group, topic) == (Code.NONE, 7)


def test_last_offset_of_a_transaction_wins(wire: Wire, transactional_id: str, topic: str, group: str) -> None:
    identity = wire.init_ok(transactional_id)
    for offset in (5, 9, 8):
        assert wire.txn_offset_commit(transactional_id, identity, group, topic, offset) == Code.NONE
    assert wire.end_settled(transactional_id, identity, commit=True).error == Code.NONE
    assert wire.offset_fetch(group, topic) == (Code.NONE, 8)


def test_records_and_offsets_in_one_transaction(wire: Wire, transactional_id: str, topic: str, group: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    assert wire.txn_offset_commit(transactional_id, identity, group, topic, 1) == Code.NONE
    assert sorted(wire.describe(transactional_id).topics) == ["__consumer_offsets", topic]
    assert wire.end_settled(transactional_id, identity, commit=True).error == Code.NONE
    assert wire.offset_fetch(group, topic) == (Code.NONE, 1)
    assert wire.list_offsets(topic, isolation=1) == 2
