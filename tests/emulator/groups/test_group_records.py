"""The group's record, byte for byte."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.groups.group import Group, Member, Protocol
from dualwrite.broker_emulator.groups.records import (
    OffsetKey,
    UnknownRecordError,
    decode_group_key,
    decode_group_value,
    decode_offset_key,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
)
from dualwrite.broker_emulator.groups.states import GroupState

SUBSCRIPTION = bytes.fromhex("0000 00000001 0001 74 ffffffff")
MEMBER = Member(
    member_id="m",
    group_instance_id=None,
    client_id="c",
    client_host="/h",
    rebalance_timeout_ms=2,
    session_timeout_ms=3,
    protocols=(Protocol("range", SUBSCRIPTION),),
    assignment=b"a",
)
GROUP = Group(
    group_id="g",
    state=GroupState.STABLE,
    generation=1,
    protocol_type="consumer",
    protocol_name="range",
    leader="m",
    state_timestamp_ms=1000,
    members={"m": MEMBER},
    subscribed_topics=frozenset({"t"}),
)
HEAD = "0008 636f6e73756d6572 00000001 0005 72616e6765 0001 6d"
TAIL = "0000000d 0000 00000001 0001 74 ffffffff 00000001 61"
V3 = f"0003 {HEAD} 00000000000003e8 00000001 0001 6d ffff 0001 63 0002 2f68 00000002 00000003 {TAIL}"


def test_key() -> None:
    assert encode_group_key("g") == bytes.fromhex("0002 0001 67")
    assert decode_group_key(encode_group_key("g")) == "g"
    assert decode_group_key(encode_offset_key(OffsetKey("g", "t", 0))) is None
    assert decode_offset_key(encode_group_key("g")) is None


def test_value() -> None:
    assert encode_group_value(GROUP) == bytes.fromhex(V3)
    assert decode_group_value("g", bytes.fromhex(V3)) == GROUP


@pytest.mark.parametrize(
    ("value", "timestamp_ms", "rebalance_timeout_ms"),
    [
        (f"0000 {HEAD} 00000001 0001 6d 0001 63 0002 2f68 00000003 {TAIL}", None, 3),
        (f"0001 {HEAD} 00000001 0001 6d 0001 63 0002 2f68 00000002 00000003 {TAIL}", None, 2),
        (f"0002 {HEAD} 00000000000003e8 00000001 0001 6d 0001 63 0002 2f68 00000002 00000003 {TAIL}", 1000, 2),
    ],
)
def test_older_values(value: str, timestamp_ms: int | None, rebalance_timeout_ms: int) -> None:
    group = decode_group_value("g", bytes.fromhex(value))
    assert (group.state_timestamp_ms, group.members["m"].rebalance_timeout_ms) == (timestamp_ms, rebalance_timeout_ms)
    assert (group.members["m"].assignment, group.members["m"].session_timeout_ms) == (b"a", 3)


def test_a_group_without_members() -> None:
    group = Group(group_id="g", state_timestamp_ms=5)
    assert encode_group_value(group) == bytes.fromhex("0003 0000 00000000 ffff ffff 0000000000000005 00000000")
    assert decode_group_value("g", encode_group_value(group)) == group


def test_a_later_value() -> None:
    with pytest.raises(UnknownRecordError):
        decode_group_value("g", bytes.fromhex("0004"))
