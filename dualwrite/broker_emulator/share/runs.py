"""Runs: neighbouring records in flight with the same state, delivery count and owner. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dualwrite.broker_emulator.share.states import RecordState, check_record_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbouring records in flight."""

    first: int
    last: int
    batch: tuple[int, int]
    """The first and last offset that were first acquired together. Runs of different batches are never joined."""
    state: RecordState = RecordState.AVAILABLE
    delivery_count: int = 0
    member_id: str = ""
    """The owner of the records, if they are acquired."""
    deadline_ms: int | None = None
    """When the acquisition lock times out, if they are acquired."""

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def part(self, first: int, last: int) -> Run:
        """Return the part between two offsets."""
        return replace(self, first=max(first, self.first), last=min(last, self.last))

    def to(self, state: RecordState) -> Run:
        """Return the run in another state, without an owner. Raises InvalidStepError for an impossible step."""
        check_record_step(self.first, self.state, state)
        return replace(self, state=state, member_id="", deadline_ms=None)


class Runs:
    """The records in flight, in the order of their offsets; every offset is in one run at most."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs = list(runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def copy(self) -> Runs:
        """Return an independent copy."""
        return Runs(self._runs)

    @property
    def last_offset(self) -> int | None:
        """The highest offset in flight, or None."""
        return self._runs[-1].last if self._runs else None

    def between(self, first: int, last: int) -> list[Run]:
        """Return the runs between two offsets, cut at the offsets."""
        found = []
        for run in self._runs[self._place(first) :]:
            if run.first > last:
                break
            found.append(run.part(first, last))
        return found

    def _place(self, offset: int) -> int:
        """Return the index of the first run that ends at or after the offset."""
        return bisect_left(self._runs, offset, key=lambda run: run.last)

    def put(self, changed: Run) -> None:
        """Replace all runs between the offsets of this run by it."""
        begin = end = self._place(changed.first)
        kept: list[Run] = []
        while end < len(self._runs) and self._runs[end].first <= changed.last:
            old = self._runs[end]
            if old.first < changed.first:
                kept.append(old.part(old.first, changed.first - 1))
            end += 1
        kept.append(changed)
        if end > begin and self._runs[end - 1].last > changed.last:
            kept.append(self._runs[end - 1].part(changed.last + 1, self._runs[end - 1].last))
        self._runs[begin:end] = kept

    def drop_before(self, offset: int) -> None:
        """Drop all records before an offset."""
        del self._runs[: self._place(offset)]
        if self._runs and self._runs[0].first < offset:
            self._runs[0] = self._runs[0].part(offset, self._runs[0].last)

    def join(self) -> None:
        """Join neighbours of the same batch that no longer differ."""
        found: list[Run] = []
        for run in self._runs:
            last = found[-1] if found else None
            if (
                last is not None
                and last.last + 1 == run.first
                and replace(run, first=last.first, last=last.last) == last
            ):
                found[-1] = replace(last, last=run.last)
            else:
                found.append(run)
        self._runs = found
