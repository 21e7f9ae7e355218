"""A history as lines of JSON: the first names the format, each other one is an event."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from dualwrite.verify.history import (
    Change,
    Deciding,
    Event,
    Fail,
    GroupOffset,
    Invoke,
    Isolation,
    Ok,
    Outcome,
    PartitionAtRest,
    Poll,
    Record,
    RecordAtRest,
    Recover,
    RowAtRest,
    Unknown,
)

FORMAT: Final = "dualwrite history"
VERSION: Final = 1

_NAMES: Final[Mapping[type[Any], str]] = {
    Invoke: "invoke",
    Deciding: "deciding",
    Ok: "ok",
    Fail: "fail",
    Unknown: "unknown",
    Recover: "recover",
    Poll: "poll",
    GroupOffset: "group_offset",
    RowAtRest: "row",
    RecordAtRest: "record",
    PartitionAtRest: "partition",
}
_KINDS: Final = {name: kind for kind, name in _NAMES.items()}
_FIELDS: Final = {kind: tuple(field.name for field in fields(kind)) for kind in _NAMES}
_NAME: Final = "event"


def _changes(found: Any) -> tuple[Change, ...]:
    return tuple(Change(*each) for each in found)


_READ: Final[Mapping[tuple[type[Any], str], Callable[[Any], Any]]] = {
    (Invoke, "rows"): _changes,
    (Invoke, "records"): _changes,
    (Deciding, "reads"): _changes,
    (Deciding, "consumed"): _changes,
    (Recover, "outcome"): Outcome,
    (Poll, "isolation"): Isolation,
    (Poll, "records"): lambda found: tuple(Record(*each) for each in found),
}
"""Fields that JSON does not preserve."""


class HistoryFormatError(ValueError):
    """A line is not one of a history, or has a version that this one does not know."""


def line_of(event: Event) -> str:
    """Return an event as one line, without its end."""
    kind = type(event)
    document = {_NAME: _NAMES[kind]} | {name: getattr(event, name) for name in _FIELDS[kind]}
    return json.dumps(document, separators=(",", ":"))


def event_of(line: str) -> Event:
    """Return the event of a line. Raises HistoryFormatError."""
    try:
        document = json.loads(line)
        kind = _KINDS[document.pop(_NAME)]
        for name, value in document.items():
            if (kind, name) in _READ:
                document[name] = _READ[kind, name](value)
        event: Event = kind(**document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HistoryFormatError(f"this is no event of a history ({error!r}): {line[:200]}") from None
    return event


def to_lines(events: Iterable[Event]) -> Iterator[str]:
    """Return the lines of a file, each with its end."""
    yield json.dumps({"format": FORMAT, "version": VERSION}) + "\n"
    for event in events:
        yield line_of(event) + "\n"


def from_lines(lines: Iterable[str]) -> Iterator[Event]:
    """Return the events of a file. Raises HistoryFormatError, which names the line."""
    for number, line in enumerate(lines, 1):
        try:
            if number == 1:
                _check_first(line)
            elif line.strip():
                yield event_of(line)
        except HistoryFormatError as error:
            raise HistoryFormatError(f"line {number}: {error}") from None


def _check_first(line: str) -> None:
    try:
        document = json.loads(line)
        known = document == {"format": FORMAT, "version": VERSION}
    except ValueError:
        known = False
    if not known:
        expected = json.dumps({"format": FORMAT, "version": VERSION})
        raise HistoryFormatError(f"the first line of a history is {expected}, and not {line[:200].strip()!r}")
