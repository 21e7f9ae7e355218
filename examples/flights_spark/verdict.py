"""Compare input, topic, table and totals, and list every divergence; pure functions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from examples.flights.comparison import Comparison, Divergence, TopicRecord, compare
from examples.flights.events import Event
from examples.flights_spark.tables import FlightRow, Total


@dataclass(frozen=True, slots=True)
class Verdict:
    """Every divergence, by kind; all empty if everything was written exactly once."""

    rows: int
    records: int
    kinds: Mapping[str, Sequence[Divergence]]

    @property
    def divergences(self) -> int:
        return sum(map(len, self.kinds.values()))

    def examples(self, count: int) -> list[str]:
        """Return the first few divergences, as sentences."""
        return [divergence.what for divergence in chain(*self.kinds.values())][:count]


def judge(
    events: Sequence[Event],
    rows: Sequence[FlightRow],
    records: Iterable[TopicRecord],
    totals: Mapping[str, Total],
) -> Verdict:
    """Compare the table with the input and with the topic, record by record, and the totals with the input."""
    comparison = compare([Event(row.number, row.tailnum, row.event) for row in rows], records, events=len(events))
    kinds = {
        **_of_the_topic(comparison),
        "rows twice": list(_rows_twice(rows)),
        "rows that differ from the input": list(_rows_that_differ(events, rows)),
        "wrong totals": list(_wrong_totals(events, totals)),
    }
    return Verdict(len(rows), comparison.records, kinds)


def _of_the_topic(comparison: Comparison) -> dict[str, list[Divergence]]:
    return {
        "in neither": comparison.missing,
        "rows without a record": comparison.lost,
        "records without a row": comparison.unexpected,
        "records twice": comparison.doubled,
        "records that differ from their row": comparison.altered,
        "records out of order": comparison.reordered,
    }


def _rows_twice(rows: Iterable[FlightRow]) -> Iterable[Divergence]:
    for number, count in Counter(row.number for row in rows).items():
        for _ in range(count - 1):
            yield Divergence(number, f"flight {number} has {count} rows")


def _rows_that_differ(events: Sequence[Event], rows: Iterable[FlightRow]) -> Iterable[Divergence]:
    for row in rows:
        event = events[row.number] if 0 <= row.number < len(events) else None
        if event is None or (event.key, event.value) != (row.tailnum, row.event):
            yield Divergence(row.number, f"the row of flight {row.number} differs from the input")


def _wrong_totals(events: Iterable[Event], totals: Mapping[str, Total]) -> Iterable[Divergence]:
    expected = expected_totals(events)
    for carrier in sorted(expected.keys() | totals.keys()):
        right, found = expected.get(carrier), totals.get(carrier)
        if right != found:
            yield Divergence(None, f"the totals of {carrier} are {found} but should be {right}")


def expected_totals(events: Iterable[Event]) -> dict[str, Total]:
    """Return the totals of the input."""
    totals: dict[str, Total] = {}
    for event in events:
        flight = json.loads(event.value)["data"]
        before = totals.get(flight["carrier"], Total(0, 0))
        totals[flight["carrier"]] = Total(before.flights + 1, before.distance + flight["distance"])
    return totals
