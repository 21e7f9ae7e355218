"""Records of `__consumer_offsets`: of offsets, byte for byte, and of groups in versions that no broker writes today."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker_emulator.groups.records import (
    CommittedOffset,
    OffsetKey,
    UnknownRecordError,
    decode_group_value,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)

TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

texts = st.text(max_size=200)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("0000" + "0000000000000007" + "00016d" + "00000000000003e8", CommittedOffset(7, -1, "m", 1000)),
        ("0001" + "0000000000000007" + "0000" + "00000000000003e8" + "f" * 16, CommittedOffset(7, -1, "", 1000)),
        ("0004" + "0000000000000007" + "00000002" + "01" + "00000000000003e8" + "00", CommittedOffset(7, 2, "", 1000)),
        (
            "0004" + "0000000000000007" + "00000002" + "01" + "00000000000003e8" + "02" + "0902ffff" + "0a01aa",
            CommittedOffset(7, 2, "", 1000),
        ),
    ],
)
def test_values_of_other_brokers(data: str, expected: CommittedOffset) -> None:
    assert decode_offset_value(bytes.fromhex(data)) == expected


def test_a_value_from_the_future() -> None:
    with pytest.raises(UnknownRecordError):
        decode_offset_value(b"\0\5")


def test_group_metadata_is_no_offset() -> None:
    assert decode_offset_key(bytes.fromhex("0002000167")) is None


@given(st.builds(OffsetKey, texts, texts, int32))
def test_keys_survive(key: OffsetKey) -> None:
    assert decode_offset_key(encode_offset_key(key)) == key


@given(st.builds(CommittedOffset, int64, int32, texts, int64, st.none() | st.uuids()))
def test_values_survive(value: CommittedOffset) -> None:
    assert decode_offset_value(encode_offset_value(value)) == value


HEAD = "0008 636f6e73756d6572 00000001 0005 72616e6765 0001 6d"
TAIL = "0000000d 0000 00000001 0001 74 ffffffff 00000001 61"


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


def test_a_later_value() -> None:
    with pytest.raises(UnknownRecordError):
        decode_group_value("g", bytes.fromhex("0004"))
