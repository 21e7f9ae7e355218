"""The records of `__consumer_offsets` for committed offsets and classic groups, in Kafka's own format.

| key version | record of | value version |
|---|---|---|
| 1 (0 is read too) | a committed offset of group, topic and partition | 3, or 4 with the topic's id; 0 to 2 are read |
| 2 | generation and members of a classic group | 3, as since Kafka 2.3; 0 to 2 are read |

Key versions from 3 on are those of consumer groups (`consumer/records.py`). A null value is a tombstone. Offset values
are flexible and have the topic's id (tag 0) on KIP-848 clusters since 4.1. A classic group with members is written
when its assignment is known, so a stable group is read back.
"""

from __future__ import annotations

import struct
import uuid
from typing import NamedTuple

from dualwrite.broker_emulator.groups.group import Group, GroupState, Member, Protocol
from dualwrite.broker_emulator.log.record_fields import FieldReader, FlexibleReader, uvarint

KEY_VERSION_OFFSET = 1
KEY_VERSIONS_OFFSET = (0, 1)
KEY_VERSION_GROUP = 2
_NEWEST_OFFSET_VERSION = 4
_NEWEST_GROUP_VERSION = 3
_TOPIC_ID_TAG = 0

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET_HEAD = struct.Struct(">hqi")  # version, offset, leader epoch


class UnknownRecordError(ValueError):
    """A value of a version that no release has; Kafka cannot load such a partition either."""


def key_version(data: bytes) -> int:
    """Return the version of a record key, which determines the kind of the record."""
    return FieldReader(data).int16()


# --- committed offsets -----------------------------------------------------------------------------------------------


class OffsetKey(NamedTuple):
    """The group of an offset, and its partition."""

    group_id: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """A committed offset; `leader_epoch` is -1 if the client did not send one."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: uuid.UUID | None = None


def encode_offset_key(key: OffsetKey) -> bytes:
    """Encode the record key, version 1."""
    return _INT16.pack(KEY_VERSION_OFFSET) + _string(key.group_id) + _string(key.topic) + _INT32.pack(key.partition)


def decode_offset_key(data: bytes) -> OffsetKey | None:
    """Decode the record key; None for a key of another kind."""
    reader = _Reader(data)
    if reader.int16() not in KEY_VERSIONS_OFFSET:
        return None
    return OffsetKey(reader.string(), reader.string(), reader.int32())


def encode_offset_value(value: CommittedOffset) -> bytes:
    """Encode the record value: version 4 with a topic id, else version 3."""
    if value.topic_id is None:
        head = _OFFSET_HEAD.pack(3, value.offset, value.leader_epoch)
        return head + _string(value.metadata) + _INT64.pack(value.commit_timestamp_ms)
    metadata = value.metadata.encode()
    tags = bytes((1, _TOPIC_ID_TAG, 16)) + value.topic_id.bytes
    head = _OFFSET_HEAD.pack(4, value.offset, value.leader_epoch)
    return head + uvarint(len(metadata) + 1) + metadata + _INT64.pack(value.commit_timestamp_ms) + tags


def decode_offset_value(data: bytes) -> CommittedOffset:
    """Decode the record value, version 0 to 4. Raises UnknownRecordError for other versions."""
    version = FieldReader(data).int16()
    if not 0 <= version <= _NEWEST_OFFSET_VERSION:
        raise UnknownRecordError(f"offset commit value of version {version}")
    reader = FlexibleReader(data, 2) if version >= 4 else _Reader(data, 2)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata, timestamp_ms = reader.string(), reader.int64()
    tags = reader.tags() if isinstance(reader, FlexibleReader) else {}
    topic_id = tags[_TOPIC_ID_TAG].uuid() if _TOPIC_ID_TAG in tags else None
    return CommittedOffset(offset, leader_epoch, metadata, timestamp_ms, topic_id)


# --- classic groups --------------------------------------------------------------------------------------------------


def encode_group_key(group_id: str) -> bytes:
    """Encode the record key, version 2."""
    return _INT16.pack(KEY_VERSION_GROUP) + _string(group_id)


def decode_group_key(data: bytes) -> str | None:
    """Decode the group's id; None for a key of another kind."""
    reader = _Reader(data)
    return reader.string() if reader.int16() == KEY_VERSION_GROUP else None


def encode_group_value(group: Group) -> bytes:
    """Encode the record value, version 3."""
    timestamp_ms = -1 if group.state_timestamp_ms is None else group.state_timestamp_ms
    return b"".join(
        (
            _INT16.pack(_NEWEST_GROUP_VERSION),
            _string(group.protocol_type or ""),
            _INT32.pack(group.generation),
            _nullable_string(group.protocol_name),
            _nullable_string(group.leader),
            _INT64.pack(timestamp_ms),
            _INT32.pack(len(group.members)),
            *(_member(member, group.protocol_name) for member in group.members.values()),
        )
    )


def _member(member: Member, protocol: str | None) -> bytes:
    return b"".join(
        (
            _string(member.member_id),
            _nullable_string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _bytes(member.metadata(protocol)),
            _bytes(member.assignment),
        )
    )


def decode_group_value(group_id: str, data: bytes) -> Group:
    """Decode the group as a new coordinator loads it. Raises UnknownRecordError unless the version is 0 to 3."""
    reader = _Reader(data)
    version = reader.int16()
    if not 0 <= version <= _NEWEST_GROUP_VERSION:
        raise UnknownRecordError(f"group metadata value of version {version}")
    protocol_type = reader.string() or None
    generation = reader.int32()
    protocol_name, leader = reader.nullable_string(), reader.nullable_string()
    timestamp_ms = reader.int64() if version >= 2 else -1
    members = [_read_member(reader, version, protocol_name) for _ in range(reader.int32())]
    group = Group(
        group_id=group_id,
        state=GroupState.STABLE if members else GroupState.EMPTY,
        generation=generation,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        leader=leader,
        state_timestamp_ms=None if timestamp_ms == -1 else timestamp_ms,
        members={member.member_id: member for member in members},
    )
    return group.with_subscribed_topics()


def _read_member(reader: _Reader, version: int, protocol: str | None) -> Member:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription, assignment = reader.blob(), reader.blob()
    return Member(
        member_id=member_id,
        group_instance_id=group_instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        protocols=(Protocol(protocol or "", subscription),),
        assignment=assignment,
    )


# --- fields of messages that are not flexible ------------------------------------------------------------------------


def _string(value: str) -> bytes:
    data = value.encode()
    return _INT16.pack(len(data)) + data


def _nullable_string(value: str | None) -> bytes:
    return _INT16.pack(-1) if value is None else _string(value)


def _bytes(value: bytes) -> bytes:
    return _INT32.pack(len(value)) + value


class _Reader(FieldReader):
    """Reads strings and bytes in the encoding of messages that are not flexible."""

    __slots__ = ()

    def string(self) -> str:
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._take(size).decode()

    def blob(self) -> bytes:
        return self._take(self.int32())
