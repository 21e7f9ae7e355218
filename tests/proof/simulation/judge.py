"""The invariants of a simulation: the verdict of the history checker, `dualwrite/verify`.

All rows have one key, whose versions are the commits of the database, in their order; so have all records, and the
writes of one transactional id are a sequence (`Invoke.sequence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from dualwrite.outcome import Outcome as Resolved
from dualwrite.recipes.core.leases import is_outbox
from dualwrite.verify.checker import check
from dualwrite.verify.history import (
    Change,
    Deciding,
    Event,
    Fail,
    Invoke,
    Isolation,
    Ok,
    Outcome,
    PartitionAtRest,
    Poll,
    Record,
    RecordAtRest,
    Recover,
    RowAtRest,
    Unknown,
)
from tests.proof.simulation.history import Begun, History, Reader, Told

_KEY: Final = "the key"
_FOUND: Final[Mapping[Resolved, Outcome]] = {
    Resolved.COMMITTED: Outcome.COMMITTED,
    Resolved.REPAIRED: Outcome.COMMITTED,
    Resolved.ROLLED_BACK: Outcome.ROLLED_BACK,
}


def judge_writers(
    history: History, readers: Sequence[Reader], rows: Sequence[str], *, in_pool: bool, is_ordered: bool = False
) -> None:
    """Note the errors of dual writes. `rows`: the writes in the database, in the order of their commits.

    In a pool, a process has several dual writes at a time. With `is_ordered` their records are in that order, whichever
    ids they had.
    """
    names = [reader.name for reader in readers]
    in_order = _KEY if is_ordered else None
    events: list[Event] = [_begin(history, begun, names, in_pool=in_pool, sequence=in_order) for begun in history.begun]
    for write, decided in history.decided.items():
        events.append(Deciding(decided.at_s, "database", write, prepared_state=decided.prepared_state or None))
    events += [_ended(told) for told in history.told]
    for at_s, process, found in history.recovered:
        if found.outcome in _FOUND and not is_outbox(found.transactional_id):  # whose batches are no blocks
            state = str(found.prepared_state)
            events.append(Recover(at_s, process, found.transactional_id, _FOUND[found.outcome], state))
    events += [RowAtRest(_KEY, write, version) for version, write in enumerate(rows)]
    for reader in readers:
        events += _read(reader, partial(_in, reader.name))
    _note(history, events)


def judge_query(history: History, readers: Sequence[Reader], values: Sequence[str], rows: Sequence[str]) -> None:
    """Note the errors of a query that has ended: each value is a dual write, in the partition of its choice."""
    events: list[Event] = []
    for value in values:
        events += [Invoke(0.0, value, value, (Change(_KEY, value),), (Change(_KEY, value),)), Ok(0.0, value, value)]
    events += [RowAtRest(_KEY, row) for row in rows]
    for reader in readers:
        events += _read(reader, str)
    _note(history, events)


def _note(history: History, events: Iterable[Event]) -> None:
    for finding in check(events).findings:
        history.wrong(str(finding))


def _in(partition: str, write: str) -> str:
    """Return the value of a record: the checker wants another one for each record of a dual write."""
    return f"{write} in {partition}"


def _begin(history: History, begun: Begun, partitions: Iterable[str], *, in_pool: bool, sequence: str | None) -> Event:
    decided = history.decided.get(begun.write)
    of = None if decided is None else decided.transactional_id or None
    records = tuple(Change(_KEY, _in(name, begun.write)) for name in partitions)
    process = begun.write if in_pool else begun.process
    return Invoke(begun.at_s, process, begun.write, (Change(_KEY, begun.write),), records, of, sequence or of)


def _ended(told: Told) -> Event:
    if told.outcome in ("COMMITTED", "STORED"):
        return Ok(told.at_s, "caller", told.write)
    return (Fail if told.outcome == "ROLLED_BACK" else Unknown)(told.at_s, "caller", told.write, told.why)


def _read(reader: Reader, value_of: Callable[[str], str]) -> Iterator[Event]:
    """Yield a reader's result, and that of a new one."""
    for got in reader.got:
        records = tuple(Record(offset, _KEY, value_of(write)) for offset, write in got.records)
        yield Poll(
            got.at_s,
            f"the reader of {reader.name}",
            Isolation.READ_COMMITTED,
            reader.name,
            records,
            got.position,
            got.last_stable_offset,
        )
    for offset, write in reader.at_rest():
        yield RecordAtRest(reader.name, offset, _KEY, value_of(write))
    yield PartitionAtRest(reader.name, *reader.ends)
