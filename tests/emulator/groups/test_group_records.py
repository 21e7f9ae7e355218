"""The group's record in the versions that no broker of today writes; those are in tests/interop/raw_wire."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.groups.records import (
    UnknownRecordError,
    decode_group_value,
)

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
