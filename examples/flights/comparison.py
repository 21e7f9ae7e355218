"""Do table and topic tell the same story? Pure: two lists in, every disagreement out."""

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
    """One disagreement between the two sides."""

    number: int | None
    what: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every disagreement, by kind; all empty when both sides agree."""

    rows: int
    records: int
    missing: list[Divergence] = field(default_factory=list)
    """An event of the input that is in neither."""
    lost: list[Divergence] = field(default_factory=list)
    """A row without a record."""
    unexpected: list[Divergence] = field(default_factory=list)
    """A record without a row."""
    doubled: list[Divergence] = field(default_factory=list)
    """One more record of a row that has one."""
    altered: list[Divergence] = field(default_factory=list)
    """A record whose key or value is not the row's."""
    reordered: list[Divergence] = field(default_factory=list)
    """A record that comes behind a later one of its key, or in another partition than the key's first one."""

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
        """The first few disagreements, as sentences."""
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
    """The first record of each event, in the order of the topic."""
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
    """Rows of a key are in the order of their numbers; its records must be too, and in one partition."""
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
    """The event number in the value, or None where the value is nothing that this demo writes."""
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
