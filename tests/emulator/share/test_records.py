"""The records of share groups, byte for byte as Apache Kafka 4.4.0 wrote them."""

from __future__ import annotations

from uuid import UUID

import pytest

from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.groups.share.group import ShareGroup, ShareMember, StateTopic
from dualwrite.broker_emulator.groups.share.records import (
    ShareRecordKey,
    apply,
    decode_share_group_key,
    records_between,
)
from dualwrite.broker_emulator.log.reading import UnknownKeyVersionError
from dualwrite.broker_emulator.share import state_records
from dualwrite.broker_emulator.share.state import ShareState, ShareStateUpdate, StateBatch, StateKey

T = UUID("c3d7fc78-4c7f-4c8d-bc47-bde6b2edb331")
U = UUID("386e41cc-52d5-4a36-8f1e-2d21ff3414dd")

# --- __consumer_offsets -----------------------------------------------------------------------------------------------

JOINED = ShareGroup(
    group_id="g2",
    group_epoch=3,
    metadata_hash=0xDF06957BEF19C8F4 - 2**64,
    members={
        "n": ShareMember(
            member_id="n",
            rack_id="r",
            client_id="c",
            client_host="/127.0.0.1",
            subscribed_topics=frozenset({"u", "t", "none"}),
            member_epoch=3,
            previous_epoch=2,
            assigned=frozenset({TopicIdPartition(T, 0)}),
        )
    },
    targets={"n": frozenset({TopicIdPartition(T, 0)})},
    assignment_epoch=3,
    assignment_timestamp_ms=0x01A20C574BF5,
    initialized={T: StateTopic("t", frozenset({0})), U: StateTopic("u", frozenset({0, 1}))},
)
PARTITIONS_OF_T = "02" + T.hex + "0200000000" + "00"
STATE_OF_T = T.hex + "0274" + "0200000000" + "00"
STATE_OF_U = U.hex + "0275" + "030000000000000001" + "00"
JOINED_RECORDS = {
    "000a0002673200016e": "0000027202630b2f3132372e302e302e3104056e6f6e650274027500",
    "000b00026732": "000000000003df06957bef19c8f400",
    "000d0002673200016e": f"0000{PARTITIONS_OF_T}00",
    "000c00026732": "000000000003010008000001a20c574bf5",
    "000e0002673200016e": f"0000000000030000000200{PARTITIONS_OF_T}00",
    "000f00026732": f"00000103{STATE_OF_T}{STATE_OF_U}0100",
}
"""By key: the records that a joined member leaves."""

STATE_TOPICS = {
    "initializing": (
        f"000003{STATE_OF_T}{STATE_OF_U}010100",
        ShareGroup(
            group_id="g2",
            initializing={T: StateTopic("t", frozenset({0})), U: StateTopic("u", frozenset({0, 1}))},
        ),
    ),
    "deleting": (
        f"00000102{U.hex}027502000000010002{T.hex}02740000",
        ShareGroup(group_id="g3", initialized={U: StateTopic("u", frozenset({1}))}, deleting={T: "t"}),
    ),
}


def test_records_of_a_group_with_a_member() -> None:
    written = [(key.hex(), value.hex() if value is not None else None) for key, value in records_between(None, JOINED)]
    assert written == list(JOINED_RECORDS.items())
    group: ShareGroup | None = None
    for key, value in JOINED_RECORDS.items():
        decoded = decode_share_group_key(bytes.fromhex(key))
        assert decoded is not None
        group = apply(group, decoded, bytes.fromhex(value))
    assert group == JOINED


@pytest.mark.parametrize("kind", STATE_TOPICS)
def test_state_that_is_being_made_or_deleted(kind: str) -> None:
    value, group = STATE_TOPICS[kind]
    ((key, written),) = records_between(None, group)
    assert (key, written) == (ShareRecordKey(15, group.group_id).encode(), bytes.fromhex(value))
    assert apply(None, ShareRecordKey(15, group.group_id), written) == group


def test_records_of_the_last_member_that_leaves() -> None:
    """Its own come first, in the order of Kafka."""
    left = ShareGroup(group_id="g2", group_epoch=4, assignment_epoch=4, initialized=JOINED.initialized)
    assert [(key.hex(), value and value.hex()) for key, value in records_between(JOINED, left)] == [
        ("000e0002673200016e", None),
        ("000d0002673200016e", None),
        ("000a0002673200016e", None),
        ("000b00026732", "000000000004000000000000000000"),
        ("000c00026732", "00000000000400"),
    ]
    assert [(key.hex(), value) for key, value in records_between(left, None)] == [
        ("000c00026732", None),
        ("000f00026732", None),
        ("000b00026732", None),
    ]


# --- __share_group_state ----------------------------------------------------------------------------------------------

KEY = StateKey("raw", T, 0)
SNAPSHOTS = {
    "without a start offset": (
        "0000000000000000000200000000ffffffffffffffff000001a20c574a48000001a20c574a480100",
        ShareState(state_epoch=2, create_timestamp_ms=0x01A20C574A48, write_timestamp_ms=0x01A20C574A48),
    ),
    "with one": (
        "00000000000000000002000000000000000000000005000001a20c574d0a000001a20c574d0a0101000400000000",
        ShareState(
            state_epoch=2,
            start_offset=5,
            delivery_complete_count=0,
            create_timestamp_ms=0x01A20C574D0A,
            write_timestamp_ms=0x01A20C574D0A,
        ),
    ),
}
UPDATES = {
    "a read by a newer leader": (
        "0000000000000000000300000000000000050101000400000000",
        ShareStateUpdate(3, 5, 0, ()),
    ),
    "batches": (
        "000000000000000000030000000000000005030000000000000005000000000000000700000100000000000000000800000000000000080200"
        "010001000400000001",
        ShareStateUpdate(3, 5, 1, (StateBatch(5, 7, 0, 1), StateBatch(8, 8, 2, 1))),
    ),
}


def test_keys_of_state() -> None:
    snapshot, update = f"00000003726177{T.hex}00000000", f"00010003726177{T.hex}00000000"
    assert state_records.encode_key(state_records.SNAPSHOT, KEY) == bytes.fromhex(snapshot)
    assert state_records.encode_key(state_records.UPDATE, KEY) == bytes.fromhex(update)
    assert state_records.decode_key(bytes.fromhex(snapshot)) == (state_records.SNAPSHOT, KEY)
    assert state_records.decode_key(bytes.fromhex(update)) == (state_records.UPDATE, KEY)
    with pytest.raises(UnknownKeyVersionError):
        state_records.decode_key(bytes.fromhex("0002" + snapshot[4:]))


@pytest.mark.parametrize("kind", SNAPSHOTS)
def test_snapshots(kind: str) -> None:
    value, state = SNAPSHOTS[kind]
    assert state_records.encode_snapshot(state) == bytes.fromhex(value)
    assert state_records.decode_snapshot(bytes.fromhex(value)) == state


@pytest.mark.parametrize("kind", UPDATES)
def test_updates(kind: str) -> None:
    value, update = UPDATES[kind]
    assert state_records.encode_update(0, update) == bytes.fromhex(value)
    assert state_records.decode_update(bytes.fromhex(value)) == update


@pytest.mark.parametrize("version", ["0001", "ffff"])
def test_values_of_other_versions(version: str) -> None:
    """Records of unknown versions are refused, not misread."""
    value = bytes.fromhex(version) + bytes(60)
    for decode in (state_records.decode_snapshot, state_records.decode_update):
        with pytest.raises(ValueError, match="value of version"):
            decode(value)
    for kind in range(10, 16):
        with pytest.raises(ValueError, match=f"for key {kind}"):
            apply(None, ShareRecordKey(kind, "g", "m"), value)
