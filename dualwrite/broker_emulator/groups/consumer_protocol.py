"""The embedded protocol by which classic consumers exchange subscriptions and assignments (KIP-54, KIP-429)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CONSUMER_PROTOCOL_TYPE = "consumer"

NamedPartitions = frozenset[tuple[str, int]]
"""Partitions by the names of their topics."""

_NEWEST_VERSION = 3
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class MalformedError(ValueError):
    """The bytes are not a ConsumerProtocolSubscription or ConsumerProtocolAssignment."""


class Subscription(NamedTuple):
    """The topics that a member subscribes to, and the partitions that it owns."""

    version: int
    topics: frozenset[str]
    owned: NamedPartitions = frozenset()
    """From version 1 on; older members revoke all of their partitions before they join."""
    rack_id: str | None = None


class NamedAssignment(NamedTuple):
    """The partitions that the leader of a classic group assigned to a member."""

    partitions: NamedPartitions
    user_data: bytes | None = None
    """Data that only the assignor understands."""


def read_version(metadata: bytes) -> int:
    """Read the version of a subscription. Raises MalformedError."""
    return _Reader(metadata).int16()


def read_subscription(metadata: bytes) -> Subscription:
    """Read a ConsumerProtocolSubscription of any version; fields after those of version 3 are ignored."""
    reader = _Reader(metadata)
    version = reader.version()
    topics = frozenset(reader.string() for _ in range(reader.count()))
    reader.nullable_bytes()
    owned: NamedPartitions = reader.partitions() if version >= 1 else frozenset()
    if version >= 2:
        reader.int32()  # the generation in which it owned them
    rack_id = reader.nullable_string() if version >= _NEWEST_VERSION else None
    return Subscription(version, topics, owned, rack_id)


def read_subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Read the topics of a subscription of any version (all begin like version 0); None for other bytes."""
    reader = _Reader(metadata)
    try:
        reader.int16()
        return frozenset(reader.string() for _ in range(reader.count()))
    except MalformedError:
        return None


def read_assignment(data: bytes) -> NamedAssignment:
    """Read a ConsumerProtocolAssignment of any version. Raises MalformedError."""
    reader = _Reader(data)
    reader.version()
    return NamedAssignment(reader.partitions(), reader.nullable_bytes())


def encode_assignment(partitions: Mapping[str, Sequence[int]], version: int) -> bytes:
    """Encode a ConsumerProtocolAssignment without user data, in the version that its member subscribed with."""
    parts = [_INT16.pack(min(version, _NEWEST_VERSION)), _INT32.pack(len(partitions))]
    for name, indexes in partitions.items():
        encoded = name.encode()
        parts += [_INT16.pack(len(encoded)), encoded, _INT32.pack(len(indexes))]
        parts += [_INT32.pack(index) for index in indexes]
    return b"".join([*parts, _INT32.pack(-1)])


class _Reader:
    """Reads one field after the other. Raises MalformedError if the data ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def int16(self) -> int:
        return self._unpack(_INT16)

    def int32(self) -> int:
        return self._unpack(_INT32)

    def count(self) -> int:
        """Read the length of an array, which is at most the number of remaining bytes."""
        count = self.int32()
        if not 0 <= count <= len(self._data) - self._offset:
            raise MalformedError(f"an array of {count} elements in {len(self._data)} bytes")
        return count

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise MalformedError("null instead of a string")
        return value

    def nullable_string(self) -> str | None:
        size = self.int16()
        try:
            return None if size < 0 else self._take(size).decode()
        except UnicodeDecodeError as error:
            raise MalformedError(str(error)) from error

    def nullable_bytes(self) -> bytes | None:
        size = self.int32()
        return None if size < 0 else self._take(size)

    def version(self) -> int:
        """Read a version, which is never negative."""
        version = self.int16()
        if version < 0:
            raise MalformedError(f"there is no version {version}")
        return version

    def partitions(self) -> NamedPartitions:
        found: set[tuple[str, int]] = set()
        for _ in range(self.count()):
            topic = self.string()
            found.update((topic, self.int32()) for _ in range(self.count()))
        return frozenset(found)

    def _unpack(self, form: struct.Struct) -> int:
        try:
            value: int = form.unpack_from(self._data, self._offset)[0]
        except struct.error as error:
            raise MalformedError(str(error)) from error
        self._offset += form.size
        return value

    def _take(self, size: int) -> bytes:
        end = self._offset + size
        if end > len(self._data):
            raise MalformedError(f"{size} bytes wanted, {len(self._data) - self._offset} left")
        start, self._offset = self._offset, end
        return self._data[start:end]
