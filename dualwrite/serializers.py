"""The settings `key.serializer` and `value.serializer`: convert an application's objects to keys or values in bytes.

A serializer is a callable `(value) -> bytes | None`, or an object with `serialize(topic, value, headers)`; None makes a
record without a key, or a tombstone. The serializers of confluent-kafka and kafka-python can be used directly. It is
called for every record, None included, in the thread that calls `send()`.
Without a serializer, bytes are sent as they are and str as UTF-8.
"""

from __future__ import annotations

import json as _json
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Headers", "Serializer", "SerializerObject", "json", "utf8"]

Headers = list[tuple[str, bytes | None]]


class SerializerObject(Protocol):
    """A serializer that needs more than the value; it may add headers to the list."""

    def serialize(self, topic: str, value: Any, headers: Headers, /) -> bytes | None:
        """Return the bytes, or None."""


Serializer = Callable[[Any], bytes | None] | SerializerObject
"""A callable or an object."""


def utf8(value: str | None) -> bytes | None:
    """Encode a str as UTF-8. Raises `TypeError` for anything but a str or None."""
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    raise TypeError(f"expected a str, not {type(value).__name__}")


def json(value: Any) -> bytes | None:
    """Encode as compact JSON (RFC 8259) in UTF-8; None is a tombstone, not `null`.

    Raises `ValueError` for NaN and infinities.
    """
    if value is None:
        return None
    return _json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
