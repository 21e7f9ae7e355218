"""`Schema`: one version of one API, with everything that is generated for its messages."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.messages.codec import builder, cut_long_texts, writer
from dualwrite.broker_emulator.messages.request_bounds import Check, bounds_check, lengths_check, without_none
from dualwrite.broker_emulator.messages.schemas import request_schema, response_schema, without_unknown_tags

_RESPONSE_PREFIX = struct.Struct(">ii")  # frame size, correlation id
_API_VERSIONS_KEY = 18


class Schema:
    """One version of one API: reads its requests, builds and writes its responses."""

    __slots__ = (
        "_check_large",
        "_flexible_response_header",
        "_read",
        "_request_type",
        "_write",
        "check_bounds",
        "errors_of",
        "flexible_request_header",
        "key",
        "new",
        "version",
    )

    def __init__(self, key: int, version: int) -> None:
        request_type = request_schema(key, version)
        response_type = response_schema(key, version)
        self.key = key
        self.version = version
        self.flexible_request_header: bool = request_type.__header_schema__.__flexible__
        # The ApiVersions response has the old header in every version: the client does not know our versions yet.
        self._flexible_response_header = response_type.__flexible__ and key != _API_VERSIONS_KEY
        self._request_type = request_type
        self._read: Callable[[bytes | memoryview, int], tuple[Any, int]] = entity_reader(request_type)
        self.check_bounds = bounds_check(request_type)
        self._check_large: Check | None = None
        self.errors_of = errors_of(response_type)
        self._write = writer(response_type)
        self.new = SimpleNamespace(**_builders(response_type), response=builder(response_type))

    def read(self, frame: bytes | memoryview, position: int) -> Any:
        """Return the request that begins at `position`. Raises many error types for a malformed one."""
        try:
            request, _ = self._read(frame, position)
        except KeyError:  # of a tagged field unknown to the codec
            request, _ = self._read(without_unknown_tags(self._request_type, frame, position), 0)
        return request

    @property
    def check_large(self) -> Check:
        """The check of a large request, including its strings if it has no arrays. Generated when first needed."""
        if self._check_large is None:
            self._check_large = self.check_bounds or lengths_check(self._request_type)
        return self._check_large

    def frame(self, correlation_id: int, response: Any) -> bytes:
        """Return the whole response frame, starting with its size."""
        parts = [b"\0"] if self._flexible_response_header else []
        try:
            self._write(parts.append, response)
        except struct.error:  # a message that quotes a very long name
            return self.large_frame(correlation_id, response)
        body = b"".join(parts)
        return _RESPONSE_PREFIX.pack(len(body) + 4, correlation_id) + body

    def large_frame(self, correlation_id: int, response: Any) -> bytes:
        """Return the same frame, more slowly, but without an object in memory for each of its fields."""
        body = bytearray(b"\0" if self._flexible_response_header else b"")
        try:
            self._write(body.extend, response)
        except struct.error:
            cut_long_texts(response)
            del body[int(self._flexible_response_header) :]
            self._write(body.extend, response)
        return _RESPONSE_PREFIX.pack(len(body) + 4, correlation_id) + body


@cache
def schema(key: int, version: int) -> Schema:
    """Return the schema of an API version, loaded on first use. Raises kio's UnknownEntity for an unknown version."""
    return Schema(key, version)


def _builders(response_type: Any) -> dict[str, Callable[..., Any]]:
    module = __import__(response_type.__module__, fromlist=["*"])
    return {
        name: builder(member)
        for name, member in vars(module).items()
        if isinstance(member, type) and is_dataclass(member) and member.__module__ == module.__name__
    }


ErrorsOf = Callable[[Any], list[ErrorCode]]


@cache
def errors_of(response_type: type[Any]) -> ErrorsOf:
    """Return a function that lists the error codes of a response of this type, without NONE.

    The function is generated for the type, because it runs for every response, and most have no error.
    """
    lines = ["def errors(entity):", "    found = []", *_error_lines(response_type, "entity", 1), "    return found"]
    names: dict[str, Any] = {"NONE": NO_ERROR}
    exec(compile("\n".join(lines), f"<{__name__}>", "exec"), names)
    made: ErrorsOf = names["errors"]
    return made


def _error_lines(entity_type: type[Any], value: str, depth: int) -> list[str]:
    indent = "    " * depth
    lines = []
    for member in fields(entity_type):
        field = f"{value}.{member.name}"
        inner, is_array = _inner(member.type)
        if member.metadata.get("kafka_type") == "error_code" and not is_array:
            lines.append(f"{indent}if {field} is not NONE: found.append({field})")
        elif is_dataclass(inner):
            nested = _error_lines(inner, f"item{depth}", depth + 1)  # type: ignore[arg-type]  # a type, as annotations are
            if nested:
                items = f"{field} or ()" if is_array else f"() if {field} is None else ({field},)"
                lines += [f"{indent}for item{depth} in {items}:", *nested]
    return lines


def _inner(annotation: Any) -> tuple[Any, bool]:
    """Return the type of a field or, if it is an array, of its elements, and whether it is an array."""
    annotation = without_none(annotation)
    if get_origin(annotation) is tuple:
        return without_none(get_args(annotation)[0]), True
    return annotation, False
