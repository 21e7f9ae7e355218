"""The little that a broker reads of what consumers tell each other: which topics a member subscribes to."""

from __future__ import annotations

import struct

CONSUMER_PROTOCOL_TYPE = "consumer"

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def read_subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of a ConsumerProtocolSubscription of any version (all begin as version 0 does); None if it is not."""
    topics: set[str] = set()
    offset = _INT16.size
    try:
        (count,) = _INT32.unpack_from(metadata, offset)
        offset += _INT32.size
        for _ in range(count):
            (size,) = _INT16.unpack_from(metadata, offset)
            offset += _INT16.size
            if size < 0 or offset + size > len(metadata):
                return None
            topics.add(metadata[offset : offset + size].decode())
            offset += size
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
