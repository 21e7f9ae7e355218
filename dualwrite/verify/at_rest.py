"""Both sides at rest: row XOR record, and the outcomes that callers got."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from dualwrite.verify.anomalies import Anomaly, Finding, listed, place
from dualwrite.verify.book import Book, Known
from dualwrite.verify.history import Fail, Ok, Outcome, RecordAtRest, Recover, RowAtRest


def differences(book: Book) -> Iterator[Finding]:
    """Yield the differences between the database and the log at rest."""
    for known in book.known.values():
        yield from _of_one(known)
    for row in book.foreign_rows:
        yield Finding(Anomaly.PHANTOM, f"the row {row.value} of key {row.key} is there, and no dual write has made it")
    for record in book.foreign_records:
        where = place(record.partition, record.offset)
        told = f"the record {record.value} of key {record.key} is at {where}, and no dual write has made it"
        yield Finding(Anomaly.PHANTOM, told, places=(where,))
    for end in book.partitions():
        if end.last_stable_offset < end.high_watermark:
            where = place(end.partition, end.last_stable_offset)
            yield Finding(
                Anomaly.OPEN_AT_REST,
                f"partition {end.partition} is readable to offset {end.last_stable_offset} of {end.high_watermark}: a "
                "transaction is open there, or left without a marker (KAFKA-20734)",
                places=(where,),
            )


def _of_one(known: Known) -> Iterator[Finding]:
    rows, records = known.invoke.rows, known.invoke.records
    has_rows = {row.value for row in known.rows}
    has_records = {record.value for record in known.records}
    yield from _doubles(known, has_rows, has_records)
    if has_rows and len(has_rows) < len(rows):
        missing = listed(row.value for row in rows if row.value not in has_rows)
        told = f"dual write {known.name} has the rows {listed(sorted(has_rows))}, and not {missing}"
        yield _finding(Anomaly.TORN, known, told)
    if has_records and len(has_records) < len(records):
        missing = listed(record.value for record in records if record.value not in has_records)
        told = f"dual write {known.name} has the records {_at(known.records)}, and not {missing}"
        yield _finding(Anomaly.TORN, known, told)
    if not rows or not records:
        return
    if has_rows and not has_records:
        told = f"dual write {known.name} has the rows {listed(sorted(has_rows))}, and none of its records is in the log"
        yield _finding(Anomaly.LOST_WRITE, known, f"{told}; {told_of(known)}")
    if has_records and not has_rows:
        told = f"dual write {known.name} has the records {_at(known.records)}, and no row"
        yield _finding(Anomaly.PHANTOM, known, f"{told}; {told_of(known)}")


def _doubles(known: Known, has_rows: set[str], has_records: set[str]) -> Iterator[Finding]:
    if len(known.records) > len(has_records):
        by_value: Mapping[str, list[RecordAtRest]] = defaultdict(list)
        for record in known.records:
            by_value[record.value].append(record)
        for value, found in by_value.items():
            if len(found) > 1:
                told = f"the record {value} of dual write {known.name} is in the log {len(found)} times: {_at(found)}"
                yield _finding(Anomaly.DUPLICATE, known, told, found)
    if len(known.rows) > len(has_rows):
        for value, times in Counter(row.value for row in known.rows).items():
            if times > 1:
                told = f"the row {value} of dual write {known.name} is in the database {times} times"
                yield _finding(Anomaly.DUPLICATE, known, told)


def _finding(anomaly: Anomaly, known: Known, sentence: str, records: Iterable[RecordAtRest] | None = None) -> Finding:
    found = known.records if records is None else records
    return Finding(anomaly, sentence, (known.name,), tuple(place(each.partition, each.offset) for each in found))


def _at(records: Iterable[RecordAtRest]) -> str:
    return listed(f"{each.value} at {place(each.partition, each.offset)}" for each in records)


# ---- told ---------------------------------------------------------------------------------------------------


def falsehoods(book: Book) -> Iterator[Finding]:
    """Yield false outcomes that callers and recoveries got."""
    by_state: dict[str, list[Known]] = defaultdict(list)
    for known in book.known.values():
        if known.deciding is not None and known.deciding.prepared_state is not None:
            by_state[known.deciding.prepared_state].append(known)
        said = _SAID.get(type(known.told))
        if said is not None and said is not known.is_committed:
            sentence = f"dual write {known.name}: {told_of(known)}, and {_truth(known)}"
            yield _finding(Anomaly.TOLD_FALSELY, known, sentence)
    for recover in book.recoveries():
        said = _RECOVERED.get(recover.outcome)
        for known in by_state.get(recover.prepared_state or "", ()):
            if said is not None and said is not known.is_committed and _is_of(recover, known):
                what = (
                    f"the recovery of {recover.transactional_id} by {recover.process} said that "
                    f"{recover.prepared_state}, which is dual write {known.name}, is {_WORDS[said]}"
                )
                yield _finding(Anomaly.TOLD_FALSELY, known, f"{what}, and {_truth(known)}")


_SAID: Mapping[type[object], bool] = {Ok: True, Fail: False}
_RECOVERED = {Outcome.COMMITTED: True, Outcome.ROLLED_BACK: False}
_WORDS = {True: "committed", False: "rolled back"}


def _is_of(recover: Recover, known: Known) -> bool:
    return known.invoke.transactional_id in (None, recover.transactional_id)


def _truth(known: Known) -> str:
    found: list[RowAtRest] | list[RecordAtRest] = known.rows if known.invoke.rows else known.records
    side = "the rows" if known.invoke.rows else "the records"
    return f"{side} {listed(each.value for each in found)} are there" if found else f"{side} are not there"


def told_of(known: Known) -> str:
    """Return the outcome that the caller got, for a sentence."""
    told = known.told
    if isinstance(told, Ok):
        return "its caller was told that it is committed"
    if told is None:
        return "its caller was told nothing"
    how = "rolled back" if isinstance(told, Fail) else "unknown"
    return f"its caller was told that it is {how}" + (f" ({told.error})" if told.error else "")
