"""Findings in the polls of readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dualwrite.verify.anomalies import Anomaly, Finding, place
from dualwrite.verify.book import Book, Known
from dualwrite.verify.history import GroupOffset, Isolation, Poll, RecordAtRest


def seen_by_readers(book: Book) -> Iterator[Finding]:
    """Yield records that readers should not have got, or got in another order, or never got."""
    at_rest = book.records_by_partition
    yield from _changed_and_doubled(book)
    for poll in book.committed_polls():
        yield from _of_poll(book, poll)
    for (reader, partition), polls in book.sessions().items():
        yield from _goes_back(reader, partition, polls)
        if polls[0].isolation is Isolation.READ_COMMITTED:
            yield from _missed(book, reader, polls, at_rest.get(partition, []))


def _of_poll(book: Book, poll: Poll) -> Iterator[Finding]:
    stable = poll.last_stable_offset
    for record in poll.records:
        known = book.writer_of_record(record.value)
        where = place(poll.partition, record.offset)
        seen = f"reader {poll.reader} got the record {record.value} at {where}"
        if stable is not None and record.offset >= stable:
            yield _read(Anomaly.UNSTABLE_READ, f"{seen}, and the last stable offset was {stable}", where, known)
        if known is None:
            yield _read(Anomaly.PHANTOM, f"{seen}, and no dual write has made it", where, known)
            continue
        if not known.is_committed:
            yield _read(Anomaly.ABORTED_READ, f"{seen}, and dual write {known.name} was rolled back", where, known)
        if poll.at < known.decided_after:
            told = f"{seen} at {poll.at}, and dual write {known.name} was not decided before {known.decided_after}"
            yield _read(Anomaly.PRECOMMITTED_READ, told, where, known)


def _read(anomaly: Anomaly, sentence: str, where: str, known: Known | None) -> Finding:
    return Finding(anomaly, sentence, () if known is None else (known.name,), (where,))


# ---- places -------------------------------------------------------------------------------------------------


def _changed_and_doubled(book: Book) -> Iterator[Finding]:
    """Yield offsets with two records and, among the records that readers got, records with two offsets."""
    values: dict[tuple[str, int], str] = {}
    places: dict[str, tuple[str, int]] = {}
    for record in book.all_of(RecordAtRest):
        values[record.partition, record.offset] = record.value
        places[record.value] = record.partition, record.offset
    told: set[object] = set()
    for poll in book.all_of(Poll):
        is_committed = poll.isolation is Isolation.READ_COMMITTED
        for offset, _, value in poll.records:
            here = poll.partition, offset
            known = book.writer_of_record(value)
            other = values.setdefault(here, value)
            if other != value and (here, value) not in told:
                told.add((here, value))
                what = f"reader {poll.reader} got the record {value} at {place(*here)}, and {other} was seen there too"
                yield _read(Anomaly.CHANGED_RECORD, what, place(*here), known)
            if not is_committed:
                continue
            first = places.setdefault(value, here)
            if first != here and (value, here) not in told:
                told.add((value, here))
                what = f"the record {value} was seen at {place(*first)}, and by {poll.reader} at {place(*here)}"
                names = () if known is None else (known.name,)
                yield Finding(Anomaly.DUPLICATE, what, names, (place(*first), place(*here)))


def _goes_back(reader: str, partition: str, polls: Sequence[Poll]) -> Iterator[Finding]:
    position = 0
    for poll in polls:
        for record in poll.records:
            if record.offset < position:
                where = place(partition, record.offset)
                told = f"reader {reader} got the record {record.value} at {where}, after it had come to {position}"
                yield Finding(Anomaly.NON_MONOTONIC_POLL, told, places=(where,))
            position = max(position, record.offset + 1)
        if poll.position < position:
            where = place(partition, poll.position)
            told = f"reader {reader} was to read on at {where}, after it had come to {position}"
            yield Finding(Anomaly.NON_MONOTONIC_POLL, told, places=(where,))
        position = max(position, poll.position)


def _missed(book: Book, reader: str, polls: Sequence[Poll], at_rest: Sequence[RecordAtRest]) -> Iterator[Finding]:
    """Yield visible records that a reader has passed without getting them."""
    shown = {record.offset for poll in polls for record in poll.records}
    first = polls[0]
    begin = first.records[0].offset if first.records else first.position
    end = max(poll.position for poll in polls)
    partly: set[str] | None = None
    for record in at_rest:
        if not begin <= record.offset < end or record.offset in shown:
            continue
        if partly is None:
            writers = (book.writer_of_record(each.value) for poll in polls for each in poll.records)
            partly = {known.name for known in writers if known is not None}
        known = book.writer_of_record(record.value)
        where = place(record.partition, record.offset)
        told = f"reader {reader} went from offset {begin} to {end} without the record {record.value} at {where}"
        if known is not None and known.name in partly:
            yield _read(Anomaly.TORN, f"{told}, and got others of dual write {known.name}", where, known)
        else:
            yield _read(Anomaly.MISSED_READ, told, where, known)


# ---- consumer groups ----------------------------------------------------------------------------------------


def offsets_going_back(book: Book) -> Iterator[Finding]:
    """Yield committed offsets that are smaller than one that was fetched before."""
    for (group, partition), fetched in book.group_offsets().items():
        yield from _back(group, partition, fetched)


def _back(group: str, partition: str, fetched: Sequence[GroupOffset]) -> Iterator[Finding]:
    """Yield the decreases in one partition.

    A process fetches one after the other. A fetch of another process counts as earlier if its response came before this
    request was sent.
    """
    responses = sorted(fetched, key=lambda each: each.at)
    heard = 0
    highest: GroupOffset | None = None
    of_process: dict[str, GroupOffset] = {}
    for each in sorted(fetched, key=lambda each: each.since):
        while responses[heard].at < each.since:
            highest = _higher(highest, responses[heard])
            heard += 1
        own = of_process.get(each.process)
        before = highest if own is None else _higher(highest, own)
        of_process[each.process] = each if own is None else _higher(own, each)
        if before is not None and each.offset < before.offset:
            told = (
                f"group {group} had committed offset {before.offset} of partition {partition}, as {before.process} "
                f"saw, and later {each.offset}, as {each.process} saw"
            )
            places = place(partition, before.offset), place(partition, each.offset)
            yield Finding(Anomaly.OFFSETS_BACK, told, places=places)


def _higher(one: GroupOffset | None, other: GroupOffset) -> GroupOffset:
    return other if one is None or other.offset > one.offset else one
