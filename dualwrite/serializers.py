"""From what an application has to the bytes of a key or a value: the settings `key.serializer`, `value.serializer`.

A serializer is a callable `(value) -> bytes | None`, or an object with `serialize(topic, value, headers)`; None makes a
record without a key, or a tombstone. It is asked for every record, None included, in the thread that sends it.
Without one, bytes are taken as they are and texts as UTF-8.
"""

from __future__ import annotations

import json as _json
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Headers", "Serializer", "SerializerObject", "json", "utf8"]

Headers = list[tuple[str, bytes | None]]


class SerializerObject(Protocol):
    """A serializer that wants to know more than the value; it may add headers to the list."""

    def serialize(self, topic: str, value: Any, headers: Headers, /) -> bytes | None:
        """The bytes, or None."""


Serializer = Callable[[Any], bytes | None] | SerializerObject
"""Either kind."""


def utf8(value: str | None) -> bytes | None:
    """A text as UTF-8. `TypeError` for anything but a text or None."""
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    raise TypeError(f"a text is wanted, not {type(value).__name__}")


def json(value: Any) -> bytes | None:
    """Compact JSON (RFC 8259) as UTF-8; None is a tombstone, not `null`. `ValueError` for NaN and infinities."""
    if value is None:
        return None
    return _json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
