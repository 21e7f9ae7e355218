"""Counters on the path of every request: additions only, because every request pays for them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import NO_ERROR

BOUNDS_MS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0, 30000.0)
"""Upper bounds of a histogram's buckets; there is one more bucket for longer durations."""

_BOUNDS_NS: Final = [round(bound * 1_000_000) for bound in BOUNDS_MS]


class Histogram:
    """A histogram of durations."""

    __slots__ = ("buckets", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_MS) + 1)
        self.total_ns = 0
        self.longest_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        self.buckets[bisect_left(_BOUNDS_NS, duration_ns)] += 1
        self.total_ns += duration_ns
        if duration_ns > self.longest_ns:
            self.longest_ns = duration_ns


class ApiRequests:
    """The requests of one API at one node."""

    __slots__ = ("duration", "errors", "throttle_ms")

    def __init__(self) -> None:
        self.duration = Histogram()
        self.errors: dict[int, int] = {}
        """The number of responses with each error code."""
        self.throttle_ms = 0
        """The total time for which quotas throttled clients."""

    def failed(self, codes: Sequence[int]) -> None:
        """Count the error codes of one response."""
        for code in codes:
            self.errors[code] = self.errors.get(code, 0) + 1


class NodeCounters:
    """The counters of one node."""

    __slots__ = ("by_api", "bytes_in", "bytes_out", "connections_made", "verification_failures", "verifications")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections_made = 0
        self.by_api: defaultdict[int, ApiRequests] = defaultdict(ApiRequests)
        self.verifications = Histogram()
        """The time that the coordinator took to verify or add partitions (VerificationTimeMs of KIP-890)."""
        self.verification_failures = 0
        """Partitions that were not verified (VerificationFailureRate of KIP-890)."""


class LogTraffic:
    """Records and bytes written to and read from a partition since its node's process started."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_in = 0


ErrorsOf = Callable[[Any], list[ErrorCode]]


@cache
def errors_of(response_type: type[Any]) -> ErrorsOf:
    """Return a function that lists the error codes of a response of this type, without NONE.

    The function is generated for the type, because it runs for every response, and most have no error.
    """
    lines = ["def errors(entity):", "    found = []", *_lines(response_type, "entity", 1), "    return found"]
    names: dict[str, Any] = {"NONE": NO_ERROR}
    exec(compile("\n".join(lines), f"<{__name__}>", "exec"), names)
    made: ErrorsOf = names["errors"]
    return made


def _lines(entity_type: type[Any], value: str, depth: int) -> list[str]:
    indent = "    " * depth
    lines = []
    for member in fields(entity_type):
        field = f"{value}.{member.name}"
        inner, is_array = _inner(member.type)
        if member.metadata.get("kafka_type") == "error_code" and not is_array:
            lines.append(f"{indent}if {field} is not NONE: found.append({field})")
        elif is_dataclass(inner):
            nested = _lines(inner, f"item{depth}", depth + 1)  # type: ignore[arg-type]  # a type, as annotations are
            if nested:
                items = f"{field} or ()" if is_array else f"() if {field} is None else ({field},)"
                lines += [f"{indent}for item{depth} in {items}:", *nested]
    return lines


def _inner(annotation: Any) -> tuple[Any, bool]:
    """Return the type of a field or, if it is an array, of its elements, and whether it is an array."""
    annotation = _without_none(annotation)
    if get_origin(annotation) is tuple:
        return _without_none(get_args(annotation)[0]), True
    return annotation, False


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation
    return next(part for part in get_args(annotation) if part is not NoneType)
