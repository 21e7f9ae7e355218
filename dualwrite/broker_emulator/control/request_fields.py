"""Select requests by the values of their fields: the predicate of faults added over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from dualwrite.broker_emulator.faults.fault import folded
from dualwrite.broker_emulator.messages.schemas import request_schema, versions_of
from dualwrite.broker_emulator.pause_points import PausePoint
from dualwrite.broker_emulator.text import did_you_mean

_CONTEXT = (
    "node_id",
    "transactional_id",
    "producer_id",
    "producer_epoch",
    "state",
    "topic",
    "partition",
    "leader_epoch",
)
"""The names in the contexts of pause points; each pause point has some of them."""

_ABSENT = "a field that this version of the request does not have"
_SCALARS = (str, int, bool, type(None))


@dataclass(frozen=True, slots=True)
class RequestFields:
    """A fault's predicate: the required values of fields of a request, or of a pause point's context."""

    wanted: Mapping[str, Any]

    @classmethod
    def of(cls, api: str | int | None, point: PausePoint | None, wanted: Mapping[str, Any]) -> RequestFields:
        """Build the predicate. Raises ValueError for a field that no version of the API's request has."""
        known = _CONTEXT if point is not None else _fields_of(api)
        for name, value in wanted.items():
            if known is not None and name not in known:
                listed = ", ".join(known)
                raise ValueError(f"request has no field {name!r}{did_you_mean(name, known)}; it has {listed}")
            if not isinstance(value, _SCALARS):
                raise ValueError(f"request.{name} must be a string, a number, true, false or null")
        return cls(dict(wanted))

    def __call__(self, request: Any) -> bool:
        if isinstance(request, Mapping):
            return all(name in request and plain(request[name]) == value for name, value in self.wanted.items())
        return all(plain(getattr(request, name, _ABSENT)) == value for name, value in self.wanted.items())


def _fields_of(api: str | int | None) -> tuple[str, ...] | None:
    """Return the fields that an API's request has in any version; None for an unknown API, which `Fault` reports."""
    if api is None:
        raise ValueError("'request' needs an 'api', whose requests have these fields")
    key = next((key for key, name in api_key_map.items() if folded(api) in (str(key), folded(name))), None)
    if key is None:
        return None
    requests = (request_schema(key, version) for version in versions_of(api_key_map[key]))
    return tuple(sorted({field.name for request in requests for field in fields(request)}))


def plain(value: Any) -> Any:
    """Return a decoded value as JSON: durations and instants in milliseconds, errors by name, bytes as hex."""
    match value:
        case timedelta():
            return round(value.total_seconds() * 1000)
        case datetime():
            return round(value.timestamp() * 1000)
        case UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case ErrorCode():
            return value.name.upper()
        case tuple() | list():
            return [plain(element) for element in value]
        case Mapping():
            return {str(name): plain(element) for name, element in value.items()}
        case None | bool() | int() | float() | str():
            return value
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
