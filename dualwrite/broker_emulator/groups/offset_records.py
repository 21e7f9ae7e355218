"""The records of `__consumer_offsets` that hold committed offsets, in Kafka's own format.

Key version 1 (group, topic, partition). Value version 3, or 4 where the topic's id is known (KIP-848 clusters
since 4.1: flexible, the id as tag 0). Older value versions are read too. Keys of version 2 are group metadata.
"""

from __future__ import annotations

import struct
import uuid
from typing import NamedTuple

KEY_VERSION_OFFSET = 1
KEY_VERSIONS_OFFSET = (0, 1)
_TOPIC_ID_TAG = 0

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_V3_HEAD = struct.Struct(">hqi")  # version, offset, leader epoch
_V0_HEAD = struct.Struct(">hq")  # version, offset
_INT64 = struct.Struct(">q")


class OffsetKey(NamedTuple):
    """Whose offset, and of which partition."""

    group_id: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """A committed offset; `leader_epoch` is -1 where the client did not say."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: uuid.UUID | None = None


class UnknownRecordError(ValueError):
    """A record of a version that is not an offset commit known here."""


def encode_key(key: OffsetKey) -> bytes:
    """The record key, version 1."""
    return _INT16.pack(KEY_VERSION_OFFSET) + _string(key.group_id) + _string(key.topic) + _INT32.pack(key.partition)


def decode_key(data: bytes) -> OffsetKey | None:
    """The record key; None for a key of another kind (group metadata)."""
    (version,) = _INT16.unpack_from(data)
    if version not in KEY_VERSIONS_OFFSET:
        return None
    group_id, offset = _read_string(data, 2)
    topic, offset = _read_string(data, offset)
    return OffsetKey(group_id, topic, _INT32.unpack_from(data, offset)[0])


def encode_value(value: CommittedOffset) -> bytes:
    """The record value: version 4 with a topic id, else version 3."""
    if value.topic_id is None:
        head = _V3_HEAD.pack(3, value.offset, value.leader_epoch)
        return head + _string(value.metadata) + _INT64.pack(value.commit_timestamp_ms)
    metadata = value.metadata.encode()
    tags = bytes((1, _TOPIC_ID_TAG, 16)) + value.topic_id.bytes
    head = _V3_HEAD.pack(4, value.offset, value.leader_epoch)
    return head + _varint(len(metadata) + 1) + metadata + _INT64.pack(value.commit_timestamp_ms) + tags


def decode_value(data: bytes) -> CommittedOffset:
    """The record value of versions 0 to 4. Raises UnknownRecordError on a later version."""
    (version,) = _INT16.unpack_from(data)
    if version > 4:
        raise UnknownRecordError(f"offset commit value of version {version}")
    leader_epoch, offset = -1, 0
    if version >= 3:
        _, committed, leader_epoch = _V3_HEAD.unpack_from(data)
        offset = _V3_HEAD.size
    else:
        _, committed = _V0_HEAD.unpack_from(data)
        offset = _V0_HEAD.size
    metadata, offset = _read_compact_string(data, offset) if version >= 4 else _read_string(data, offset)
    (timestamp_ms,) = _INT64.unpack_from(data, offset)
    topic_id = _read_topic_id(data, offset + 8) if version >= 4 else None
    return CommittedOffset(committed, leader_epoch, metadata, timestamp_ms, topic_id)


def _string(value: str) -> bytes:
    data = value.encode()
    return _INT16.pack(len(data)) + data


def _read_string(data: bytes, offset: int) -> tuple[str, int]:
    (size,) = _INT16.unpack_from(data, offset)
    end = offset + 2 + size
    return data[offset + 2 : end].decode(), end


def _read_compact_string(data: bytes, offset: int) -> tuple[str, int]:
    size, offset = _read_varint(data, offset)
    end = offset + size - 1
    return data[offset:end].decode(), end


def _read_topic_id(data: bytes, offset: int) -> uuid.UUID | None:
    """The tagged topic id; other tags are skipped."""
    count, offset = _read_varint(data, offset)
    for _ in range(count):
        tag, offset = _read_varint(data, offset)
        size, offset = _read_varint(data, offset)
        if tag == _TOPIC_ID_TAG:
            return uuid.UUID(bytes=data[offset : offset + size])
        offset += size
    return None


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
