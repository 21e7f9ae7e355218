"""Ways to spoil a good history, one for each way in which dual writes fail. Each names the anomaly to be found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, TypeVar

from dualwrite.verify.anomalies import Anomaly
from dualwrite.verify.history import (
    Deciding,
    Event,
    Fail,
    GroupOffset,
    Invoke,
    Ok,
    Outcome,
    PartitionAtRest,
    Poll,
    Record,
    RecordAtRest,
    Recover,
    RowAtRest,
)

EventT = TypeVar("EventT")
Mutation = Callable[[list[Event], random.Random], list[Event] | None]
"""None: there is nothing in the history to spoil in this way."""


def _all(events: Sequence[Event], kind: type[EventT]) -> list[EventT]:
    return [event for event in events if isinstance(event, kind)]


def _changed(events: list[Event], old: Event, *new: Event) -> list[Event]:
    at = next(number for number, event in enumerate(events) if event is old)
    return [*events[:at], *new, *events[at + 1 :]]


def _committed(events: Sequence[Event]) -> list[Invoke]:
    values = {row.value for row in _all(events, RowAtRest)}
    return [invoke for invoke in _all(events, Invoke) if invoke.rows[0].value in values]


def _rolled_back(events: Sequence[Event]) -> list[Invoke]:
    values = {row.value for row in _all(events, RowAtRest)}
    return [invoke for invoke in _all(events, Invoke) if invoke.rows[0].value not in values]


def _without(events: list[Event], kind: type[RowAtRest | RecordAtRest], invoke: Invoke, most: int = 99) -> list[Event]:
    values = [change.value for change in invoke.rows][:most]
    return [event for event in events if not (isinstance(event, kind) and event.value in values)]


def _pick(chance: random.Random, found: Sequence[EventT]) -> EventT | None:
    return chance.choice(found) if found else None


# ---- both sides ---------------------------------------------------------------------------------------------


def lose_the_records(events: list[Event], chance: random.Random) -> list[Event] | None:
    invoke = _pick(chance, _committed(events))
    return None if invoke is None else _without(events, RecordAtRest, invoke)


def lose_the_rows(events: list[Event], chance: random.Random) -> list[Event] | None:
    invoke = _pick(chance, _committed(events))
    return None if invoke is None else _without(events, RowAtRest, invoke)


def lose_one_record(events: list[Event], chance: random.Random) -> list[Event] | None:
    invoke = _pick(chance, [each for each in _committed(events) if len(each.records) > 1])
    return None if invoke is None else _without(events, RecordAtRest, invoke, most=1)


def lose_one_row(events: list[Event], chance: random.Random) -> list[Event] | None:
    invoke = _pick(chance, [each for each in _committed(events) if len(each.rows) > 1])
    return None if invoke is None else _without(events, RowAtRest, invoke, most=1)


def show_what_was_rolled_back(events: list[Event], chance: random.Random) -> list[Event] | None:
    invoke = _pick(chance, _rolled_back(events))
    if invoke is None:
        return None
    return [*events, *(RecordAtRest("orders-0", 10_000 + n, *each) for n, each in enumerate(invoke.records))]


def publish_again(events: list[Event], chance: random.Random) -> list[Event] | None:
    """A repair of a committed dual write."""
    record = _pick(chance, _all(events, RecordAtRest))
    return None if record is None else [*events, replace(record, offset=record.offset + 10_000)]


def move_after_it_was_read(events: list[Event], chance: random.Random) -> list[Event] | None:
    """The log was truncated, and the record stored again."""
    record = _pick(chance, _all(events, RecordAtRest))
    return None if record is None else _changed(events, record, replace(record, offset=record.offset + 10_000))


def leave_it_open(events: list[Event], chance: random.Random) -> list[Event] | None:
    end = _pick(chance, [each for each in _all(events, PartitionAtRest) if each.high_watermark])
    return None if end is None else _changed(events, end, replace(end, last_stable_offset=end.high_watermark - 1))


# ---- told ---------------------------------------------------------------------------------------------------


def tell_a_caller_the_other_thing(events: list[Event], chance: random.Random) -> list[Event] | None:
    ends: list[Ok | Fail] = [*_all(events, Ok), *_all(events, Fail)]
    told = _pick(chance, ends)
    if told is None:
        return None
    other = Fail if isinstance(told, Ok) else Ok
    return _changed(events, told, other(told.at, told.process, told.dual_write))


def recover_to_the_other_side(events: list[Event], chance: random.Random) -> list[Event] | None:
    told = _pick(chance, _all(events, Recover))
    if told is None:
        return None
    other = Outcome.ROLLED_BACK if told.outcome is Outcome.COMMITTED else Outcome.COMMITTED
    return _changed(events, told, replace(told, outcome=other))


# ---- readers ------------------------------------------------------------------------------------------------


def _with_records(events: Sequence[Event]) -> list[Poll]:
    return [poll for poll in _all(events, Poll) if poll.records]


def show_again(events: list[Event], chance: random.Random) -> list[Event] | None:
    poll = _pick(chance, _with_records(events))
    return None if poll is None else _changed(events, poll, poll, replace(poll, at=poll.at + 0.5))


def take_the_position_back(events: list[Event], chance: random.Random) -> list[Event] | None:
    poll = _pick(chance, _with_records(events))
    return None if poll is None else _changed(events, poll, replace(poll, position=poll.records[0].offset))


def show_before_it_is_stable(events: list[Event], chance: random.Random) -> list[Event] | None:
    poll = _pick(chance, _with_records(events))
    if poll is None:
        return None
    return _changed(events, poll, replace(poll, last_stable_offset=chance.choice(poll.records).offset))


def show_before_the_decision(events: list[Event], chance: random.Random) -> list[Event] | None:
    poll = _pick(chance, _with_records(events))
    if poll is None:
        return None
    value = chance.choice(poll.records).value
    invoke = next(each for each in _all(events, Invoke) if value in {change.value for change in each.records})
    deciding = next(each for each in _all(events, Deciding) if each.dual_write == invoke.dual_write)
    return _changed(events, deciding, replace(deciding, at=poll.at + 0.5))


def go_past_a_record(events: list[Event], chance: random.Random) -> list[Event] | None:
    """Of a dual write with one record, as no other record shows it then."""
    single = {invoke.records[0].value for invoke in _committed(events) if len(invoke.records) == 1}
    found = _seen_later(events, single)
    return _hidden(events, chance, found)


def go_past_one_of_two_records(events: list[Event], chance: random.Random) -> list[Event] | None:
    """Both of one key, so of one partition."""
    first = {
        one.value for invoke in _committed(events) for one, other in pairwise(invoke.records) if one.key == other.key
    }
    return _hidden(events, chance, _seen_later(events, first))


def _seen_later(events: Sequence[Event], values: set[str]) -> list[tuple[Poll, Record]]:
    """Without the first poll of each reader: only that one shows where it begins."""
    begun: set[tuple[str, str]] = set()
    found: list[tuple[Poll, Record]] = []
    for poll in _all(events, Poll):
        where = poll.reader, poll.partition
        if where in begun:
            found += [(poll, record) for record in poll.records if record.value in values]
        begun.add(where)
    return found


def _hidden(events: list[Event], chance: random.Random, found: Sequence[tuple[Poll, Record]]) -> list[Event] | None:
    hit = _pick(chance, found)
    if hit is None:
        return None
    poll, record = hit
    return _changed(events, poll, replace(poll, records=tuple(each for each in poll.records if each != record)))


def show_what_will_be_rolled_back(events: list[Event], chance: random.Random) -> list[Event] | None:
    invoke = _pick(chance, _rolled_back(events))
    poll = _pick(chance, _with_records(events))
    if invoke is None or poll is None:
        return None
    return _changed(events, poll, replace(poll, records=(Record(poll.records[0].offset, *invoke.records[0]),)))


def change_what_stands_there(events: list[Event], chance: random.Random) -> list[Event] | None:
    records = _all(events, RecordAtRest)
    if len(records) < 2:
        return None
    one, other = chance.sample(records, 2)
    changed = _changed(events, one, replace(one, key=other.key, value=other.value))
    return _changed(changed, other, replace(other, key=one.key, value=one.value))


def take_the_group_back(events: list[Event], chance: random.Random) -> list[Event] | None:
    found = _pick(chance, [each for each in _all(events, GroupOffset) if each.offset > 0])
    if found is None:
        return None
    at = max(event.at for event in _all(events, Poll)) + 1
    return [*events, GroupOffset(at + 1, at, "other", found.group, found.partition, found.offset - 1)]


# ---- dependencies -------------------------------------------------------------------------------------------


def _neighbours(events: Sequence[Event]) -> list[tuple[RowAtRest, RowAtRest]]:
    """Return versions of one key that two dual writes made one after the other."""
    owner = {change.value: invoke.dual_write for invoke in _all(events, Invoke) for change in invoke.rows}
    pairs = pairwise(_all(events, RowAtRest))
    return [(one, other) for one, other in pairs if one.key == other.key and owner[one.value] != owner[other.value]]


def swap_versions(events: list[Event], chance: random.Random) -> list[Event] | None:
    """The database ordered two dual writes in one way, and Kafka in the other."""
    pair = _pick(chance, _neighbours(events))
    if pair is None:
        return None
    one, other = pair
    changed = _changed(events, one, replace(one, version=other.version))
    return _changed(changed, other, replace(other, version=one.version))


def swap_records_of_a_key(events: list[Event], chance: random.Random) -> list[Event] | None:
    """A republished record stands behind records that were written later."""
    owner = {change.value: invoke.dual_write for invoke in _all(events, Invoke) for change in invoke.records}
    found: list[tuple[RecordAtRest, RecordAtRest]] = []
    last: dict[str, RecordAtRest] = {}
    for record in _all(events, RecordAtRest):
        before = last.get(record.key)
        if before is not None and owner[before.value] != owner[record.value]:
            found.append((before, record))
        last[record.key] = record
    pair = _pick(chance, found)
    if pair is None:
        return None
    one, other = pair
    changed = _changed(events, one, replace(one, offset=other.offset))
    return _changed(changed, other, replace(other, offset=one.offset))


def make_a_version_twice(events: list[Event], chance: random.Random) -> list[Event] | None:
    pair = _pick(chance, _neighbours(events))
    return None if pair is None else _changed(events, pair[1], replace(pair[1], version=pair[0].version))


def read_the_future(events: list[Event], chance: random.Random) -> list[Event] | None:
    """A dual write reads the value that the next writer of its key has written."""
    pair = _pick(chance, _neighbours(events))
    if pair is None:
        return None
    owner = {change.value: invoke for invoke in _all(events, Invoke) for change in invoke.rows}
    reader, writer = owner[pair[0].value], owner[pair[1].value]
    deciding = next(each for each in _all(events, Deciding) if each.dual_write == reader.dual_write)
    final = [change for change in writer.rows if change.key == pair[1].key][-1]
    return _changed(events, deciding, replace(deciding, reads=(final,)))


def read_what_was_rolled_back(events: list[Event], chance: random.Random) -> list[Event] | None:
    invoke, reader = _pick(chance, _rolled_back(events)), _pick(chance, _committed(events))
    if invoke is None or reader is None:
        return None
    deciding = next(each for each in _all(events, Deciding) if each.dual_write == reader.dual_write)
    final = [change for change in invoke.rows if change.key == invoke.rows[0].key][-1]
    return _changed(events, deciding, replace(deciding, reads=(final,)))


def read_what_was_overwritten(events: list[Event], chance: random.Random) -> list[Event] | None:
    firsts = {
        other.value: one
        for invoke in _committed(events)
        for one, other in pairwise(invoke.rows)
        if one.key == other.key
    }
    committed = {invoke.dual_write for invoke in _committed(events)}
    readers = [
        each
        for each in _all(events, Deciding)
        if each.dual_write in committed and any(change.value in firsts for change in each.reads)
    ]
    deciding = _pick(chance, readers)
    if deciding is None:
        return None
    reads = tuple(firsts.get(change.value, change) for change in deciding.reads)
    return _changed(events, deciding, replace(deciding, reads=reads))


MUTATIONS: Final[dict[Mutation, Anomaly]] = {
    lose_the_records: Anomaly.LOST_WRITE,
    lose_the_rows: Anomaly.PHANTOM,
    lose_one_record: Anomaly.TORN,
    lose_one_row: Anomaly.TORN,
    show_what_was_rolled_back: Anomaly.PHANTOM,
    publish_again: Anomaly.DUPLICATE,
    move_after_it_was_read: Anomaly.DUPLICATE,
    leave_it_open: Anomaly.OPEN_AT_REST,
    tell_a_caller_the_other_thing: Anomaly.TOLD_FALSELY,
    recover_to_the_other_side: Anomaly.TOLD_FALSELY,
    show_again: Anomaly.NON_MONOTONIC_POLL,
    take_the_position_back: Anomaly.NON_MONOTONIC_POLL,
    show_before_it_is_stable: Anomaly.UNSTABLE_READ,
    show_before_the_decision: Anomaly.PRECOMMITTED_READ,
    go_past_a_record: Anomaly.MISSED_READ,
    go_past_one_of_two_records: Anomaly.TORN,
    show_what_will_be_rolled_back: Anomaly.ABORTED_READ,
    change_what_stands_there: Anomaly.CHANGED_RECORD,
    take_the_group_back: Anomaly.OFFSETS_BACK,
    swap_versions: Anomaly.WRITE_CYCLE,
    swap_records_of_a_key: Anomaly.OUT_OF_ORDER,
    make_a_version_twice: Anomaly.LOST_UPDATE,
    read_the_future: Anomaly.INFORMATION_CYCLE,
    read_what_was_rolled_back: Anomaly.ABORTED_READ,
    read_what_was_overwritten: Anomaly.INTERMEDIATE_READ,
}
