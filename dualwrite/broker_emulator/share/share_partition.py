"""A share-partition at the leader of its partition: the records in flight, and which member gets which. Pure.

The start offset is the first record whose delivery is not complete; the end offset follows the last record that was
ever acquired. The records between are in flight, as runs. A decision returns its changes; they take effect, all or
none, when the caller has persisted them (`apply`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.share.state import NO_OFFSET, ShareState, StateBatch, joined
from dualwrite.broker_emulator.share.states import (
    FINAL_RECORD_STATES,
    STATE_AFTER,
    AcknowledgeType,
    RecordState,
    Run,
    Runs,
)

_PAST = "Batch record not found. The {} offset in request is past acquired records."
_NOT_FOUND = "Batch record not found. The request batch offsets are not found in the cache."
_NOT_ACQUIRED = "The offset cannot be acknowledged. The offset is not acquired."
_OTHER_OWNER = "Member is not the owner of offset"
_LEAST_THROTTLE = 2


class AcknowledgeError(RefusedError):
    """Acknowledgements of a partition are refused with this error; nothing has changed."""


class ShareSettings(NamedTuple):
    """The settings that decisions about a share-partition depend on."""

    lock_duration_ms: int
    delivery_count_limit: int
    max_record_locks: int
    allows_renewal: bool = True

    @property
    def throttled_from(self) -> int:
        """The delivery count from which records are delivered a few at a time, since one of them may be bad."""
        return max(_LEAST_THROTTLE, -(-self.delivery_count_limit // 2))


class Wish(NamedTuple):
    """The records that a member wants to acquire."""

    member_id: str
    max_records: int
    batch_size: int
    is_strict: bool = False
    """Whether it must not get more than `max_records` (KIP-1206), even within one record batch."""


class Acquired(NamedTuple):
    """Some acquired records."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """A member's acknowledgement of some records: one type for all, or one for each."""

    first_offset: int
    last_offset: int
    types: tuple[int, ...]

    def type_of(self, offset: int) -> AcknowledgeType:
        """Return the type for the record at an offset."""
        return AcknowledgeType(self.types[0] if len(self.types) == 1 else self.types[offset - self.first_offset])


@dataclass(frozen=True, slots=True)
class Change:
    """A change that takes effect when it is persisted."""

    runs: Runs
    start_offset: int
    """The start offset before the change; it is persisted with the change."""
    batches: tuple[StateBatch, ...]
    """The records whose persisted state changes. If there are none, the change need not be persisted."""
    delivery_complete_count: int


class SharePartition:
    """One share-partition, from its persisted state until another node leads the partition."""

    def __init__(self, state: ShareState, start_offset: int) -> None:
        """Begin with a persisted state. `start_offset` is used if the state has no start offset."""
        self.state_epoch = state.state_epoch
        self.start_offset = start_offset if state.start_offset == NO_OFFSET else state.start_offset
        self._runs = Runs(
            Run(
                first=batch.first_offset,
                last=batch.last_offset,
                batch=(batch.first_offset, batch.last_offset),
                state=RecordState(batch.delivery_state),
                delivery_count=batch.delivery_count,
            )
            for batch in state.batches
            if batch.first_offset >= self.start_offset
        )
        self._end = max(self.start_offset, (self._runs.last_offset or NO_OFFSET) + 1)
        self._settle()

    # the records in flight

    @property
    def next_fetch_offset(self) -> int:
        """The first record that can be acquired, or the offset of the next record."""
        available = (run.first for run in self._runs if run.state is RecordState.AVAILABLE)
        return min(next(available, self._end), self._first_gap())

    def _first_gap(self) -> int:
        """Return the first offset between start and end that is in no run, or the end."""
        expected = self.start_offset
        for run in self._runs:
            if run.first > expected:
                return expected
            expected = run.last + 1
        return self._end

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next acquisition lock times out, or None."""
        return min((run.deadline_ms for run in self._runs if run.deadline_ms is not None), default=None)

    def has_room(self, settings: ShareSettings) -> bool:
        """Return whether records could be acquired: there is a released record, or room for one more in flight."""
        return self.next_fetch_offset < self._end or self._end - self.start_offset < settings.max_record_locks

    def log_start_moved(self, log_start_offset: int) -> None:
        """Forget records that were deleted from the log; later acknowledgements of them have no effect."""
        if log_start_offset > self.start_offset:
            self.start_offset = log_start_offset
            self._end = max(self._end, log_start_offset)
            self._settle()

    # acquiring

    def acquire(
        self, wish: Wish, batches: Sequence[tuple[int, int]], settings: ShareSettings, now_ms: int
    ) -> list[Acquired]:
        """Acquire records of the fetched record batches (first and last offsets) for a member.

        Whole record batches are acquired, beyond the member's maximum if need be, unless the wish is strict.
        """
        room = settings.max_record_locks - (self._end - self.start_offset)
        if wish.max_records <= 0 or not batches:
            return []
        first, last = batches[0][0], batches[-1][1]
        first = max(first, self.start_offset)
        deadline_ms = now_ms + settings.lock_duration_ms
        taken: list[Run] = []
        count, is_throttled = 0, False
        for group in _by_batch(self._runs.between(first, last)):
            if count >= wish.max_records or is_throttled:
                break
            available = [run for run in group if run.state is RecordState.AVAILABLE]
            limit, is_throttled = _throttle(available, settings)
            if is_throttled and count and limit == 1:
                break  # the last attempt delivers a record alone
            if wish.is_strict:
                limit = min(limit, wish.max_records - count)
            chosen = _first_records(available, limit)
            taken += [_acquired(run, wish.member_id, deadline_ms) for run in chosen]
            count += sum(run.size for run in chosen)
        new_first = max(first, self._end)
        wanted = min(wish.max_records - count, max(room, 0))
        gaps = [] if is_throttled else self._gaps(first, min(last, self._end - 1))
        for gap_first, gap_last in gaps:
            taken.append(_new_run(gap_first, gap_last, wish.member_id, deadline_ms))
            count += gap_last - gap_first + 1
        if wanted > 0 and not is_throttled and new_first <= last:
            taken += self._acquire_new(wish, batches, new_first, wanted, deadline_ms)
        for run in taken:
            self._runs.put(run)
            self._end = max(self._end, run.last + 1)
        found = [Acquired(run.first, run.last, run.delivery_count) for run in sorted(taken, key=lambda run: run.first)]
        self._runs.join()
        return found

    def _gaps(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the offsets between `first` and `last` that are in no run."""
        found, expected = [], first
        for run in self._runs.between(first, last):
            if run.first > expected:
                found.append((expected, run.first - 1))
            expected = run.last + 1
        return [*found, (expected, last)] if expected <= last else found

    def _acquire_new(
        self, wish: Wish, batches: Sequence[tuple[int, int]], first: int, wanted: int, deadline_ms: int
    ) -> list[Run]:
        """Acquire records that were never in flight, in pieces of whole record batches."""
        last = first + wanted - 1
        if not wish.is_strict:
            last = next((end for _, end in batches if end >= last), batches[-1][1])
        last = min(last, batches[-1][1])
        pieces: list[tuple[int, int]] = []
        begin = first
        for _, batch_last in batches:
            end = min(batch_last, last)
            if end < begin:
                continue
            if end - begin + 1 >= wish.batch_size or end == last:
                pieces.append((begin, end))
                begin = end + 1
            if end == last:
                break
        return [_new_run(piece_first, piece_last, wish.member_id, deadline_ms) for piece_first, piece_last in pieces]

    # acknowledging, releasing and time

    def acknowledge(
        self, member_id: str, acknowledgements: Iterable[Acknowledgement], settings: ShareSettings, now_ms: int
    ) -> Change:
        """Decide a member's acknowledgements of its records. Raises AcknowledgeError."""
        runs = self._runs.copy()
        changed: list[Run] = []
        for acknowledgement in acknowledgements:
            if acknowledgement.last_offset < self.start_offset:
                continue
            first = max(acknowledgement.first_offset, self.start_offset)
            found = self._known(runs, first, acknowledgement.last_offset)
            after: list[Run] = []
            for run in found:
                if run.state is not RecordState.ACQUIRED:
                    raise AcknowledgeError(ErrorCode.invalid_record_state, _NOT_ACQUIRED)
                if run.member_id != member_id:
                    raise AcknowledgeError(ErrorCode.invalid_record_state, _OTHER_OWNER)
                after += _acknowledged(run, acknowledgement, settings, now_ms)
            for run in after:
                runs.put(run)
            changed += after
        return self._change(runs, changed)

    def _known(self, runs: Runs, first: int, last: int) -> list[Run]:
        found = runs.between(first, last)
        if first >= self._end:
            raise AcknowledgeError(ErrorCode.invalid_request, _PAST.format("first"))
        if last >= self._end:
            raise AcknowledgeError(ErrorCode.invalid_request, _PAST.format("last"))
        if not found:
            raise AcknowledgeError(ErrorCode.invalid_record_state, _NOT_FOUND)
        return found

    def release(self, member_id: str, settings: ShareSettings) -> Change:
        """Decide that a member gives back all its records."""
        owned = (run for run in self._runs if run.state is RecordState.ACQUIRED and run.member_id == member_id)
        return self._released(list(owned), settings)

    def time_out(self, settings: ShareSettings, now_ms: int) -> Change:
        """Decide that the acquisition locks that are due time out."""
        late = (run for run in self._runs if run.deadline_ms is not None and run.deadline_ms <= now_ms)
        return self._released(list(late), settings)

    def _released(self, owned: list[Run], settings: ShareSettings) -> Change:
        runs = self._runs.copy()
        changed = [
            run.to(
                RecordState.ARCHIVED if run.delivery_count >= settings.delivery_count_limit else RecordState.AVAILABLE
            )
            for run in owned
        ]
        for run in changed:
            runs.put(run)
        return self._change(runs, changed)

    def _change(self, runs: Runs, changed: Iterable[Run]) -> Change:
        batches = [
            StateBatch(run.first, run.last, int(run.state), run.delivery_count)
            for run in changed
            if run.state is not RecordState.ACQUIRED
        ]
        complete = sum(run.size for run in runs if run.state in FINAL_RECORD_STATES)
        return Change(runs, self.start_offset, joined(sorted(batches)), complete)

    def apply(self, change: Change) -> None:
        """Apply a change that was just decided."""
        self._runs = change.runs
        self._settle()

    def _settle(self) -> None:
        """Move the start offset past the records whose delivery is complete, and forget these."""
        for run in self._runs:
            if run.first > self.start_offset or run.state not in FINAL_RECORD_STATES:
                break
            self.start_offset = max(self.start_offset, run.last + 1)
        self._runs.drop_before(self.start_offset)
        self._runs.join()


def _by_batch(runs: Iterable[Run]) -> Iterable[list[Run]]:
    group: list[Run] = []
    for run in runs:
        if group and group[-1].batch != run.batch:
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _throttle(available: Sequence[Run], settings: ShareSettings) -> tuple[int, bool]:
    """Return how many of the records may be acquired, and whether their delivery counts are the reason for this limit.

    Records that failed often come in ever smaller numbers, so that one bad record does not use up the deliveries of the
    records acquired with it; the last attempt is made with one record alone.
    """
    size = sum(run.size for run in available)
    most = max((run.delivery_count for run in available), default=0)
    if most < settings.throttled_from:
        return size, False
    if most >= settings.delivery_count_limit - 1:
        return 1, True
    whole = max(run.batch[1] - run.batch[0] + 1 for run in available)
    return max(1, whole >> (most - settings.throttled_from + 1)), True


def _first_records(runs: Iterable[Run], limit: int) -> list[Run]:
    found: list[Run] = []
    for run in runs:
        if limit <= 0:
            break
        found.append(run.part(run.first, run.first + limit - 1))
        limit -= found[-1].size
    return found


def _acquired(run: Run, member_id: str, deadline_ms: int) -> Run:
    taken = run.to(RecordState.ACQUIRED)
    count = run.delivery_count + 1
    return replace(taken, delivery_count=count, member_id=member_id, deadline_ms=deadline_ms)


def _new_run(first: int, last: int, member_id: str, deadline_ms: int) -> Run:
    return _acquired(Run(first=first, last=last, batch=(first, last)), member_id, deadline_ms)


def _acknowledged(run: Run, acknowledgement: Acknowledgement, settings: ShareSettings, now_ms: int) -> list[Run]:
    if len(acknowledgement.types) == 1:
        return [_after(run, acknowledgement.type_of(run.first), settings, now_ms)]
    return [
        _after(run.part(offset, offset), acknowledgement.type_of(offset), settings, now_ms)
        for offset in range(run.first, run.last + 1)
    ]


def _after(run: Run, kind: AcknowledgeType, settings: ShareSettings, now_ms: int) -> Run:
    state = STATE_AFTER[kind]
    if state is RecordState.ACQUIRED:
        return replace(run, deadline_ms=now_ms + settings.lock_duration_ms)
    if state is RecordState.AVAILABLE and run.delivery_count >= settings.delivery_count_limit:
        state = RecordState.ARCHIVED
    return run.to(state)
