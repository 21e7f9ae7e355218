"""States of share groups and of records in flight, the steps between them, and runs of records in one state. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum


class ShareGroupState(StrEnum):
    """A group's state; the value is the name that the APIs show."""

    EMPTY = "Empty"
    """No members."""
    STABLE = "Stable"
    """At least one member. Members share partitions, so there is nothing to reconcile."""
    DEAD = "Dead"
    """Deleted. Groups in this state are not kept."""


NEXT_GROUP_STATES: dict[ShareGroupState, dict[ShareGroupState, str]] = {
    ShareGroupState.EMPTY: {ShareGroupState.STABLE: "a member joins", ShareGroupState.DEAD: "deleted"},
    ShareGroupState.STABLE: {ShareGroupState.EMPTY: "the last member leaves"},
    ShareGroupState.DEAD: {},
}
"""The states that may follow each state, with the cause of each step."""


class RecordState(IntEnum):
    """The state of a record of a share-partition; the value is the number in requests and in persisted state."""

    AVAILABLE = 0
    """It can be acquired."""
    ACQUIRED = 1
    """A member has it until its acquisition lock times out. Never persisted."""
    ACKNOWLEDGED = 2
    """A member has processed it."""
    ARCHIVED = 4
    """It is not delivered again: rejected, a gap, delivered too often, or deleted from the log."""


NEXT_RECORD_STATES: dict[RecordState, dict[RecordState, str]] = {
    RecordState.AVAILABLE: {
        RecordState.ACQUIRED: "fetched by a member",
        RecordState.ARCHIVED: "deleted from the log",
    },
    RecordState.ACQUIRED: {
        RecordState.AVAILABLE: "released, or the acquisition lock timed out",
        RecordState.ACKNOWLEDGED: "accepted",
        RecordState.ARCHIVED: "rejected, a gap, or released at the delivery count limit",
    },
    RecordState.ACKNOWLEDGED: {},
    RecordState.ARCHIVED: {},
}
"""The states that may follow each state, with the cause of each step."""

FINAL_RECORD_STATES = frozenset(state for state, after in NEXT_RECORD_STATES.items() if not after)
"""The states of records whose delivery is complete."""


PERSISTED_RECORD_STATES = frozenset(RecordState) - {RecordState.ACQUIRED}
"""The states that persisted batches can have."""


class AcknowledgeType(IntEnum):
    """A member's acknowledgement of an acquired record; the value is the number in requests."""

    GAP = 0
    """There is no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The member needs more time (KIP-1222)."""


STATE_AFTER: dict[AcknowledgeType, RecordState] = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
    AcknowledgeType.RENEW: RecordState.ACQUIRED,
}
"""The state to which an acknowledgement takes a record. At the delivery count limit, a released record is archived."""


class InvalidStepError(Exception):
    """The table of states does not allow a step: a bug in this package."""


def check_group_step(group_id: str, before: ShareGroupState, after: ShareGroupState) -> None:
    """Raise InvalidStepError if the table does not allow the step."""
    if before is not after and after not in NEXT_GROUP_STATES[before]:
        raise InvalidStepError(f"share group {group_id!r} cannot go from {before} to {after}")


def check_record_step(offset: int, before: RecordState, after: RecordState) -> None:
    """Raise InvalidStepError if the table does not allow the step."""
    if before is not after and after not in NEXT_RECORD_STATES[before]:
        raise InvalidStepError(f"the record at offset {offset} cannot go from {before.name} to {after.name}")


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
