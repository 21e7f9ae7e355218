"""The records of `__share_group_state`, in Kafka's own format: a snapshot (key 0), and updates to it (key 1).

Both keys name the share-partition; both values are of version 0 and flexible, with the delivery complete count as
tag 0 (KIP-1226).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from dualwrite.broker_emulator.log import record_fields as fields
from dualwrite.broker_emulator.log.reading import UnknownKeyVersionError
from dualwrite.broker_emulator.log.record_fields import FlexibleReader
from dualwrite.broker_emulator.share.state import (
    UNKNOWN_COUNT,
    ShareState,
    ShareStateUpdate,
    StateBatch,
    StateKey,
    inconsistency,
)

SNAPSHOT, UPDATE = 0, 1
_VERSION = 0
_BATCH = struct.Struct(">qqbhB")
_NO_TAGS = 0
_COUNT_TAG = 0


class StateRecordKey(NamedTuple):
    """The key of a record."""

    kind: int
    key: StateKey


def encode_key(kind: int, key: StateKey) -> bytes:
    """Encode a record key."""
    head = fields.int16(kind) + fields.key_string(key.group_id)
    return head + key.topic_id.bytes + fields.int32(key.partition)


def decode_key(data: bytes) -> StateRecordKey:
    """Decode a record key. Raises UnknownKeyVersionError for a later version."""
    reader = FlexibleReader(data)
    kind = reader.int16()
    if kind not in (SNAPSHOT, UPDATE):
        raise UnknownKeyVersionError(kind)
    return StateRecordKey(kind, StateKey(reader.key_string(), reader.uuid(), reader.int32()))


def encode_snapshot(state: ShareState) -> bytes:
    """Encode the value of key 0."""
    return b"".join(
        (
            fields.int16(_VERSION),
            fields.int32(state.snapshot_epoch),
            fields.int32(state.state_epoch),
            fields.int32(state.leader_epoch),
            fields.int64(state.start_offset),
            fields.int64(state.create_timestamp_ms),
            fields.int64(state.write_timestamp_ms),
            _encode_batches(state.batches),
            _encode_count(state.delivery_complete_count),
        )
    )


def decode_snapshot(value: bytes) -> ShareState:
    """Decode the value of key 0."""
    reader = _value_reader(value)
    snapshot_epoch, state_epoch, leader_epoch = reader.int32(), reader.int32(), reader.int32()
    start_offset, create_ms, write_ms = reader.int64(), reader.int64(), reader.int64()
    batches = _read_batches(reader)
    count = _read_count(reader)
    _check(start_offset, count, batches)
    return ShareState(
        snapshot_epoch=snapshot_epoch,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=count,
        create_timestamp_ms=create_ms,
        write_timestamp_ms=write_ms,
        batches=batches,
    )


def encode_update(snapshot_epoch: int, update: ShareStateUpdate) -> bytes:
    """Encode the value of key 1."""
    return b"".join(
        (
            fields.int16(_VERSION),
            fields.int32(snapshot_epoch),
            fields.int32(update.leader_epoch),
            fields.int64(update.start_offset),
            _encode_batches(update.batches),
            _encode_count(update.delivery_complete_count),
        )
    )


def decode_update(value: bytes) -> ShareStateUpdate:
    """Decode the value of key 1."""
    reader = _value_reader(value)
    reader.int32()  # the snapshot epoch, known from earlier records
    leader_epoch, start_offset = reader.int32(), reader.int64()
    batches = _read_batches(reader)
    count = _read_count(reader)
    _check(start_offset, count, batches)
    return ShareStateUpdate(leader_epoch, start_offset, count, batches)


def _check(start_offset: int, delivery_complete_count: int, batches: Iterable[StateBatch]) -> None:
    problem = inconsistency(start_offset, delivery_complete_count, batches)
    if problem is not None:
        raise ValueError(problem)


def _value_reader(value: bytes) -> FlexibleReader:
    reader = FlexibleReader(value)
    version = reader.int16()
    if version != _VERSION:  # later releases add tagged fields only
        raise ValueError(f"unknown value version {version}")
    return reader


def _encode_batches(batches: tuple[StateBatch, ...]) -> bytes:
    return fields.array(_BATCH.pack(*batch, _NO_TAGS) for batch in batches)


def _read_batches(reader: FlexibleReader) -> tuple[StateBatch, ...]:
    found = []
    for _ in range(reader.count()):
        found.append(StateBatch(reader.int64(), reader.int64(), reader.int8(), reader.int16()))
        reader.tags()
    return tuple(found)


def _encode_count(count: int) -> bytes:
    return fields.tags({} if count == UNKNOWN_COUNT else {_COUNT_TAG: fields.int32(count)})


def _read_count(reader: FlexibleReader) -> int:
    tagged = reader.tags()
    return tagged[_COUNT_TAG].int32() if _COUNT_TAG in tagged else UNKNOWN_COUNT
