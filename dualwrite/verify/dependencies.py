"""The order of committed dual writes, and cycles in it.

Each dependency says that one was decided before the other. It made an earlier version of a row (write-write), an
earlier record of a key in the same sequence (write-write), or a value that the other one read (write-read); or the same
process began it earlier, in the same sequence, or after it was known to be committed. There is one order of decisions,
so there is no cycle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from dualwrite.verify.anomalies import Anomaly, Finding, place
from dualwrite.verify.book import Book, Known
from dualwrite.verify.cycles import components, cycle_in
from dualwrite.verify.history import Change, Invoke, Isolation, Ok, Poll, RecordAtRest, RowAtRest

_Edges = dict[int, dict[int, str]]


class _Place(NamedTuple):
    """The place of a record among those of its key."""

    version: int
    number: int
    """Its number among the records of its dual write."""


def dependencies(book: Book) -> Iterator[Finding]:
    """Yield cycles between dual writes, and reads that they should not have made."""
    names = [known for known in book.known.values() if known.is_committed]
    numbers = {known.name: number for number, known in enumerate(names)}
    edges: _Edges = defaultdict(dict)
    yield from _order_of_versions(book, numbers, edges)
    _enter_records(book, numbers, edges)
    _enter_processes(book, numbers, edges)
    by_writes = set()
    for component in components(edges):
        by_writes.update(component)
        yield _cycle(Anomaly.WRITE_CYCLE, names, edges, component)
    yield from _reads(book, numbers, edges)
    for component in components(edges):
        if by_writes.isdisjoint(component):
            yield _cycle(Anomaly.INFORMATION_CYCLE, names, edges, component)


def _add(edges: _Edges, one: int, other: int, why: str) -> None:
    if one != other:
        edges[one].setdefault(other, why)


def _cycle(anomaly: Anomaly, names: list[Known], edges: _Edges, component: list[int]) -> Finding:
    cycle = cycle_in(edges, component)
    steps = [
        f"{names[one].name} before {names[other].name} ({edges[one][other]})"
        for one, other in pairwise([*cycle, cycle[0]])
    ]
    cycled = tuple(names[number].name for number in cycle)
    places = {place(each.partition, each.offset): None for number in cycle for each in names[number].records}
    return Finding(anomaly, "each comes before the next: " + "; ".join(steps), cycled, tuple(places))


# ---- write-write --------------------------------------------------------------------------------------------


def _order_of_versions(book: Book, numbers: dict[str, int], edges: _Edges) -> Iterator[Finding]:
    """Enter the order of row versions. Yield versions that two dual writes have made."""
    by_key: dict[str, list[tuple[int, Known]]] = defaultdict(list)
    for row in book.all_of(RowAtRest):
        known = book.writer_of_row(row.value)
        if known is not None and row.version is not None:
            by_key[row.key].append((row.version, known))
    for key, versions in by_key.items():
        versions.sort(key=lambda each: each[0])
        for (version, one), (next_version, other) in pairwise(versions):
            if one is not other and version == next_version:
                told = f"dual writes {one.name} and {other.name} have both made version {version} of key {key}"
                yield Finding(Anomaly.LOST_UPDATE, told, (one.name, other.name))
            elif one is not other:
                why = f"versions {version} and {next_version} of key {key}"
                _add(edges, numbers[one.name], numbers[other.name], why)


def _enter_records(book: Book, numbers: dict[str, int], edges: _Edges) -> None:
    last: dict[tuple[str, str, str], tuple[Known, RecordAtRest]] = {}
    for records in book.records_by_partition.values():
        for record in records:
            known = book.writer_of_record(record.value)
            if known is None or known.invoke.sequence is None or known.name not in numbers:
                continue
            where = record.partition, record.key, known.invoke.sequence
            if where in last:
                one, before = last[where]
                why = f"offsets {before.offset} and {record.offset} of {record.partition}, key {record.key}"
                _add(edges, numbers[one.name], numbers[known.name], why)
            last[where] = known, record


def _enter_processes(book: Book, numbers: dict[str, int], edges: _Edges) -> None:
    told: dict[str, Known] = {}
    begun: dict[tuple[str, str], Known] = {}
    for invoke in book.all_of(Invoke):
        known = book.known[invoke.dual_write]
        if known.name not in numbers:
            continue
        process, sequence = invoke.process, invoke.sequence
        if process in told:
            why = f"{process} was told that the first is committed, and then began the second"
            _add(edges, numbers[told[process].name], numbers[known.name], why)
        if sequence is not None:
            if (process, sequence) in begun:
                why = f"{process} began the one after the other, in sequence {sequence}"
                _add(edges, numbers[begun[process, sequence].name], numbers[known.name], why)
            begun[process, sequence] = known
        if isinstance(known.told, Ok):
            told[process] = known


# ---- write-read ---------------------------------------------------------------------------------------------


def _reads(book: Book, numbers: dict[str, int], edges: _Edges) -> Iterator[Finding]:
    """Enter the reads, each with reader and writer. Yield values that should not have been read."""
    finals = _FinalVersions()
    for known in book.known.values():
        if known.deciding is None or known.name not in numbers:
            continue
        for change in known.deciding.reads:
            writer = book.writer_of_row(change.value)
            yield from _misread(known, change, writer)
            if writer is not None and writer is not known and finals.of(writer).get(change.key) != change.value:
                final = finals.of(writer).get(change.key)
                told = (
                    f"dual write {known.name} read {change.value} of key {change.key}, and dual write {writer.name} "
                    f"made {final} of it in the end"
                )
                yield Finding(Anomaly.INTERMEDIATE_READ, told, (known.name, writer.name))
            _enter_read(known, change, writer, numbers, edges)
        for change in known.deciding.consumed:
            writer = book.writer_of_record(change.value)
            yield from _misread(known, change, writer)
            _enter_read(known, change, writer, numbers, edges)


def _enter_read(known: Known, change: Change, writer: Known | None, numbers: dict[str, int], edges: _Edges) -> None:
    if writer is not None and writer.name in numbers:
        why = f"the second read {change.value} of key {change.key}"
        _add(edges, numbers[writer.name], numbers[known.name], why)


class _FinalVersions:
    """The final versions of keys that each dual write made."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def of(self, known: Known) -> dict[str, str]:
        if known.name not in self._known:
            self._known[known.name] = {row.key: row.value for row in known.invoke.rows}
        return self._known[known.name]


def _misread(reader: Known, change: Change, writer: Known | None) -> Iterator[Finding]:
    assert reader.deciding is not None
    read = f"dual write {reader.name} read {change.value} of key {change.key}"
    if writer is None:
        yield Finding(Anomaly.PHANTOM, f"{read}, and no dual write has made it", (reader.name,))
        return
    if writer is reader:
        return
    both = reader.name, writer.name
    if not writer.is_committed:
        yield Finding(Anomaly.ABORTED_READ, f"{read}, and dual write {writer.name} was rolled back", both)
    if reader.deciding.at < writer.decided_after:
        told = f"{read} before {reader.deciding.at}, and dual write {writer.name} was not decided before "
        yield Finding(Anomaly.PRECOMMITTED_READ, f"{told}{writer.decided_after}", both)


# ---- order --------------------------------------------------------------------------------------------------


def swapped(book: Book) -> Iterator[Finding]:
    """Yield records of a key that stand, or were shown, behind one that belongs behind them."""
    places = _places(book)
    for partition, records in book.records_by_partition.items():
        found = ((each.offset, each.key, each.value) for each in records)
        yield from _descending(book, "in the log", partition, found, places)
    for (reader, partition), polls in book.sessions().items():
        if polls[0].isolation is Isolation.READ_COMMITTED:
            yield from _descending(book, f"as reader {reader} saw", partition, _shown(polls), places)


def _shown(polls: Iterable[Poll]) -> Iterator[tuple[int, str, str]]:
    return (record for poll in polls for record in poll.records)


def _places(book: Book) -> dict[str, _Place]:
    """Return each record's place, among all of its key if the row versions are known, else in its dual write only."""
    versions: dict[tuple[str, str], int] = {}
    for row in book.all_of(RowAtRest):
        known = book.writer_of_row(row.value)
        if known is not None and row.version is not None:
            versions[known.name, row.key] = row.version
    return {
        change.value: _Place(versions[known.name, change.key], number)
        for known in book.known.values()
        for number, change in enumerate(known.invoke.records)
        if (known.name, change.key) in versions
    }


def _descending(
    book: Book, where: str, partition: str, records: Iterable[tuple[int, str, str]], places: dict[str, _Place]
) -> Iterator[Finding]:
    last: dict[tuple[str, str], tuple[_Place, int, str]] = {}
    for offset, key, value in records:
        belongs = places.get(value)
        known = book.writer_of_record(value)
        if belongs is None or known is None or known.invoke.sequence is None:
            continue
        key_of_sequence = key, known.invoke.sequence
        before = last.get(key_of_sequence)
        if before is not None and belongs < before[0]:
            told = (
                f"{value} of key {key} (version {belongs.version}) is at {place(partition, offset)}, behind "
                f"{before[2]} (version {before[0].version}) at {place(partition, before[1])}, {where}"
            )
            spots = place(partition, before[1]), place(partition, offset)
            yield Finding(Anomaly.OUT_OF_ORDER, told, (known.name,), spots)
        else:
            last[key_of_sequence] = belongs, offset, value
