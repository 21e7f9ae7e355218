"""Compare table and topic, and list every divergence; pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from examples.flights.events import Event


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One record as a read_committed consumer sees it."""

    partition: int
    offset: int
    key: str | None
    value: str | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """One divergence between table and topic."""

    number: int | None
    what: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every divergence, by kind; all empty if table and topic agree."""

    rows: int
    records: int
    missing: list[Divergence] = field(default_factory=list)
    """An event of the input that is in neither."""
    lost: list[Divergence] = field(default_factory=list)
    """A row without a record."""
    unexpected: list[Divergence] = field(default_factory=list)
    """A record without a row."""
    doubled: list[Divergence] = field(default_factory=list)
    """Another record of a row that already has one."""
    altered: list[Divergence] = field(default_factory=list)
    """A record whose key or value differs from its row."""
    reordered: list[Divergence] = field(default_factory=list)
    """A record behind a later one of its key, or in another partition than the first record of its key."""

    def by_kind(self) -> dict[str, list[Divergence]]:
        return {
            "missing": self.missing,
            "lost": self.lost,
            "unexpected": self.unexpected,
            "doubled": self.doubled,
            "altered": self.altered,
            "reordered": self.reordered,
        }

    @property
    def divergences(self) -> int:
        return sum(map(len, self.by_kind().values()))

    def examples(self, count: int) -> list[str]:
        """Return the first few divergences, as sentences."""
        return [divergence.what for divergence in chain(*self.by_kind().values())][:count]


def compare(rows: Sequence[Event], records: Iterable[TopicRecord], *, events: int) -> Comparison:
    """Compare the table with the topic, and the table with the `events` that should be in it."""
    ordered = sorted(records, key=lambda record: (record.partition, record.offset))
    result = Comparison(len(rows), len(ordered))
    table = {row.number: row for row in rows}
    first_records = _match(table, ordered, result)
    for number, row in table.items():
        if number not in first_records:
            result.lost.append(Divergence(number, f"event {number} (key {row.key!r}) has a row and no record"))
    published = {divergence.number for divergence in result.unexpected}
    for number in range(events):
        if number not in table and number not in published:
            result.missing.append(Divergence(number, f"event {number} is in neither"))
    _check_order(first_records, result)
    return result


def _match(table: dict[int, Event], records: Iterable[TopicRecord], result: Comparison) -> dict[int, TopicRecord]:
    """Return the first record of each event, in the order of the topic."""
    first_records: dict[int, TopicRecord] = {}
    for record in records:
        number = _number_of(record)
        if number is None or number not in table:
            result.unexpected.append(Divergence(number, f"{_place(record)} holds {_shown(number)}, which has no row"))
        elif number in first_records:
            result.doubled.append(
                Divergence(
                    number, f"event {number} is at {_place(first_records[number])} and again at {_place(record)}"
                )
            )
        else:
            first_records[number] = record
            if (record.key, record.value) != (table[number].key, table[number].value):
                result.altered.append(Divergence(number, f"event {number} at {_place(record)} differs from its row"))
    return first_records


def _check_order(first_records: dict[int, TopicRecord], result: Comparison) -> None:
    """Check that the records of a key are in the order of their numbers, like its rows, and in one partition."""
    last_of_key: dict[str | None, tuple[int, int]] = {}
    for number, record in first_records.items():
        partition, last = last_of_key.setdefault(record.key, (record.partition, number))
        if record.partition != partition:
            result.reordered.append(
                Divergence(
                    number, f"event {number} at {_place(record)}: key {record.key!r} is in partition {partition}"
                )
            )
        elif number < last:
            result.reordered.append(
                Divergence(number, f"event {number} at {_place(record)} comes behind event {last} of the same key")
            )
        else:
            last_of_key[record.key] = (partition, number)


def _number_of(record: TopicRecord) -> int | None:
    """Return the event number in the value, or None if this demo did not write the value."""
    if record.value is None:
        return None
    try:
        number = json.loads(record.value)["event"]
    except (ValueError, KeyError, TypeError):
        return None
    return number if type(number) is int else None  # True is an int too


def _place(record: TopicRecord) -> str:
    return f"partition {record.partition} offset {record.offset}"


def _shown(number: int | None) -> str:
    return "a foreign record" if number is None else f"event {number}"
