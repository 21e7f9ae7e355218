"""A history, sorted by dual write, reader and partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dualwrite.verify.history import (
    Change,
    Deciding,
    Event,
    Fail,
    GroupOffset,
    Invoke,
    Isolation,
    Ok,
    PartitionAtRest,
    Poll,
    RecordAtRest,
    Recover,
    RowAtRest,
    Unknown,
)

EventT = TypeVar("EventT")


class HistoryError(ValueError):
    """The history contradicts itself: an error of the program that noted it."""


@dataclass(slots=True)
class Known:
    """All facts known about one dual write."""

    name: str
    invoke: Invoke
    deciding: Deciding | None = None
    told: Ok | Fail | Unknown | None = None
    rows: list[RowAtRest] = field(default_factory=list)
    """Its rows at rest."""
    records: list[RecordAtRest] = field(default_factory=list)
    """Its records at rest."""

    @property
    def is_committed(self) -> bool:
        """Whether the database has decided the dual write; without rows, whether Kafka shows it."""
        return bool(self.rows if self.invoke.rows else self.records)

    @property
    def decided_after(self) -> float:
        """Return a time before which it was certainly not decided."""
        return self.invoke.at if self.deciding is None else self.deciding.at


class Book:
    """The whole history. Raises HistoryError."""

    def __init__(self, events: Iterable[Event]) -> None:
        by_kind: dict[type[Any], list[Any]] = defaultdict(list)
        for event in events:
            by_kind[type(event)].append(event)
        self._by_kind = by_kind
        self.known: dict[str, Known] = {}
        self._writer_of_row: dict[str, Known] = {}
        self._writer_of_record: dict[str, Known] = {}
        for invoke in self.all_of(Invoke):
            self._enter(invoke)
        self._check_sides()
        self._enter_what_was_told()
        self.foreign_rows: list[RowAtRest] = []
        self.foreign_records: list[RecordAtRest] = []
        self._enter_what_is_at_rest()
        self.records_by_partition = _by_partition(self.all_of(RecordAtRest))
        """The records at rest, including those of no dual write, in the order of offsets."""

    def all_of(self, kind: type[EventT]) -> Sequence[EventT]:
        """Return the events of a kind, in their order."""
        return self._by_kind.get(kind, [])

    def writer_of_row(self, value: str) -> Known | None:
        """Return the dual write whose row has this value."""
        return self._writer_of_row.get(value)

    def writer_of_record(self, value: str) -> Known | None:
        """Return the dual write whose record has this value."""
        return self._writer_of_record.get(value)

    # ---- entries --------------------------------------------------------------------------------------------

    def _enter(self, invoke: Invoke) -> None:
        if invoke.dual_write in self.known:
            raise HistoryError(f"dual write {invoke.dual_write} begins twice")
        known = self.known[invoke.dual_write] = Known(invoke.dual_write, invoke)
        _own(self._writer_of_row, known, invoke.rows)
        _own(self._writer_of_record, known, invoke.records)

    def _check_sides(self) -> None:
        for value, known in self._writer_of_record.items():
            other = self._writer_of_row.get(value, known)
            if other is not known:
                raise HistoryError(f"the value {value} belongs to two dual writes, {known.name} and {other.name}")

    def _enter_what_was_told(self) -> None:
        for deciding in self.all_of(Deciding):
            self._named(deciding.dual_write).deciding = deciding
        ends: list[Ok | Fail | Unknown] = [*self.all_of(Ok), *self.all_of(Fail), *self.all_of(Unknown)]
        for told in ends:
            known = self._named(told.dual_write)
            if known.told is not None:
                raise HistoryError(f"dual write {known.name} ends twice")
            known.told = told

    def _named(self, name: str) -> Known:
        if name not in self.known:
            raise HistoryError(f"dual write {name} ends, and never began")
        return self.known[name]

    def _enter_what_is_at_rest(self) -> None:
        for row in self.all_of(RowAtRest):
            known = self._writer_of_row.get(row.value)
            if known is None:
                self.foreign_rows.append(row)
            else:
                known.rows.append(row)
        for record in self.all_of(RecordAtRest):
            known = self._writer_of_record.get(record.value)
            if known is None:
                self.foreign_records.append(record)
            else:
                known.records.append(record)

    # ---- views ----------------------------------------------------------------------------------------------

    def sessions(self) -> dict[tuple[str, str], list[Poll]]:
        """Return the polls of each reader in each partition."""
        found: dict[tuple[str, str], list[Poll]] = defaultdict(list)
        for poll in self.all_of(Poll):
            found[poll.reader, poll.partition].append(poll)
        return found

    def committed_polls(self) -> list[Poll]:
        """Return the polls with `read_committed`."""
        return [poll for poll in self.all_of(Poll) if poll.isolation is Isolation.READ_COMMITTED]

    def group_offsets(self) -> dict[tuple[str, str], list[GroupOffset]]:
        """Return the fetched offsets of each group in each partition."""
        found: dict[tuple[str, str], list[GroupOffset]] = defaultdict(list)
        for each in self.all_of(GroupOffset):
            found[each.group, each.partition].append(each)
        return found

    def recoveries(self) -> Sequence[Recover]:
        """Return the results of recoveries."""
        return self.all_of(Recover)

    def partitions(self) -> Sequence[PartitionAtRest]:
        """Return the ends of the logs."""
        return self.all_of(PartitionAtRest)


def _by_partition(records: Iterable[RecordAtRest]) -> dict[str, list[RecordAtRest]]:
    found: dict[str, list[RecordAtRest]] = defaultdict(list)
    for record in records:
        found[record.partition].append(record)
    for each in found.values():
        each.sort(key=lambda record: record.offset)
    return found


def _own(owners: dict[str, Known], known: Known, changes: Iterable[Change]) -> None:
    for change in changes:
        owner = owners.setdefault(change.value, known)
        if owner is not known:
            raise HistoryError(f"the value {change.value} belongs to two dual writes, {owner.name} and {known.name}")
    if len({change.value for change in changes}) < len(tuple(changes)):
        raise HistoryError(f"dual write {known.name} has the same value twice on one side")
