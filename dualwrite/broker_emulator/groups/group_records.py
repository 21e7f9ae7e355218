"""The records of `__consumer_offsets` that hold a group's generation and members, in Kafka's own format.

Key version 2 (group). Value version 3, as every release since 2.3 writes it; versions 0 to 2 are read too. A null value
is a tombstone: the group is no more. A group with members is written when its assignment is known, so what is read
back is a stable group.
"""

from __future__ import annotations

import struct

from dualwrite.broker_emulator.groups.field_reader import FieldReader
from dualwrite.broker_emulator.groups.group import Group, Member, Protocol
from dualwrite.broker_emulator.groups.offset_records import UnknownRecordError
from dualwrite.broker_emulator.groups.states import GroupState

KEY_VERSION_GROUP = 2
_VALUE_VERSION = 3

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


def encode_group_key(group_id: str) -> bytes:
    """The record key, version 2."""
    return _INT16.pack(KEY_VERSION_GROUP) + _string(group_id)


def decode_group_key(data: bytes) -> str | None:
    """The group's id; None for a key of another kind (offsets)."""
    reader = _Reader(data)
    return reader.string() if reader.int16() == KEY_VERSION_GROUP else None


def encode_group_value(group: Group) -> bytes:
    """The record value, version 3."""
    timestamp_ms = -1 if group.state_timestamp_ms is None else group.state_timestamp_ms
    return b"".join(
        (
            _INT16.pack(_VALUE_VERSION),
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
    """The group as a new coordinator finds it. Raises UnknownRecordError on a later version."""
    reader = _Reader(data)
    version = reader.int16()
    if version > _VALUE_VERSION:
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


def _string(value: str) -> bytes:
    data = value.encode()
    return _INT16.pack(len(data)) + data


def _nullable_string(value: str | None) -> bytes:
    return _INT16.pack(-1) if value is None else _string(value)


def _bytes(value: bytes) -> bytes:
    return _INT32.pack(len(value)) + value


class _Reader(FieldReader):
    """Strings and bytes as they were before flexible messages."""

    __slots__ = ()

    def string(self) -> str:
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._take(size).decode()

    def blob(self) -> bytes:
        return self._take(self.int32())
