"""Asks the application's serializers. What goes wrong in them is the record's fault, and nothing was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dualwrite.client.records.validation import encoded
from dualwrite.errors import InvalidRecordError
from dualwrite.serializers import Headers, Serializer

Serialize = Callable[[str, Any, Headers], bytes | None]


def serialize_with(what: str, serializer: Serializer | None) -> Serialize | None:
    """One form for both kinds of serializer; None for none. `what`: key or value."""
    if serializer is None:
        return None
    method = getattr(serializer, "serialize", None)

    def serialize(topic: str, value: Any, headers: Headers) -> bytes | None:
        try:
            made = method(topic, value, headers) if method is not None else serializer(value)  # type: ignore[operator]
        except Exception as error:
            raise InvalidRecordError(
                f"the {what} serializer failed on {type(value).__name__} with {error!r}; the record was not sent"
            ) from error
        if made is None or isinstance(made, bytes | bytearray | memoryview):
            return encoded(what, made)
        raise InvalidRecordError(
            f"the {what} serializer gave {type(made).__name__}, not bytes or None; the record was not sent"
        )

    return serialize


class Serializers:
    """Both settings of one producer."""

    def __init__(self, key_serializer: Serializer | None, value_serializer: Serializer | None) -> None:
        self._key = serialize_with("key", key_serializer)
        self._value = serialize_with("value", value_serializer)
        self.any = self._key is not None or self._value is not None

    def apply(self, topic: str, key: Any, value: Any, headers: Headers) -> tuple[Any, Any]:
        """Key and value as their serializers make them; what has no serializer is left as it is."""
        key = key if self._key is None else self._key(topic, key, headers)
        return key, value if self._value is None else self._value(topic, value, headers)
