"""Records of consumer groups: bytes that Apache Kafka 4.4.0 wrote are decoded, and encoded to the same bytes."""

from __future__ import annotations

import uuid

from dualwrite.broker_emulator.groups.consumer import records
from dualwrite.broker_emulator.groups.consumer.group import ClassicMetadata, ConsumerGroup, RegularExpression
from dualwrite.broker_emulator.groups.consumer.records import RecordKey, apply, decode_consumer_group_key
from dualwrite.broker_emulator.groups.consumer.states import MemberState
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.groups.group import Protocol

TOPIC = uuid.UUID(int=7)
ID = TOPIC.hex
CLASSIC = (
    "00000000047261770b2f3132372e302e302e310202610100004e200001002701"
    "00002710020672616e6765190001000000010008612d545454545454ffffffff000000000000"
)


def read(kind: int, value: str, name: str = "m") -> ConsumerGroup:
    key = RecordKey(kind, "g", name if kind in (5, 7, 8, 16) else "")
    assert decode_consumer_group_key(key.encode()) == key
    group = apply(None, key, bytes.fromhex(value))
    assert group is not None
    return group


def test_a_member_of_the_classic_protocol() -> None:
    member = read(records.MEMBER, CLASSIC).members["m"]
    metadata = bytes.fromhex("0001000000010008612d545454545454ffffffff00000000")
    assert member.classic == ClassicMetadata(10_000, (Protocol("range", metadata),))
    assert records.encode_member(member).hex() == CLASSIC


def test_a_current_assignment_of_a_broker_before_kip_1251() -> None:
    member = read(records.CURRENT, f"000000000005000000040902{ID}0200000000000100").members["m"]
    assert (member.state, member.assigned) == (MemberState.UNKNOWN, {TopicIdPartition(TOPIC, 0): 5})


def test_a_regular_expression() -> None:
    value = "00000202620000000000000263000001a2022e6a1100"
    found = read(records.REGULAR_EXPRESSION, value, "b.*").regular_expressions["b.*"]
    assert found == RegularExpression(frozenset("b"), 611, 1_795_332_925_969)
    assert records.encode_regular_expression(found).hex() == value


def test_partition_metadata_of_brokers_before_4_1_is_skipped() -> None:
    assert apply(None, RecordKey(records.PARTITION_METADATA, "g"), b"\0\0\1\0") is None
