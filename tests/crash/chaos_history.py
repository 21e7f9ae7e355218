"""The result of a chaos test run as a history: from the journals, the table and the topic.

Each key is a sequence: its records stand in the order in which blocks locked its row. Only the records of a direct
dual write that a broker has aborted are published again behind others (docs/order.md).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from dualwrite.verify.history import Change, Event, Fail, Invoke, Ok, RecordAtRest, RowAtRest, Unknown
from tests.crash.chaos_job import BEGUN, COMMITTED, LOST, ROLLED_BACK, UNKNOWN, bodies_of
from tests.support.topics import Read

_TOLD: Mapping[str, type[Ok | Fail | Unknown]] = {
    # Lost: the database has committed, as its caller learned; the message itself is a mistake.
    **{COMMITTED: Ok, LOST: Ok},
    **{ROLLED_BACK: Fail, UNKNOWN: Unknown},
}


def history_of(
    lines: Iterable[str], in_table: Mapping[str, int], in_topic: Iterable[Read], repaired: Collection[str] = ()
) -> Iterator[Event]:
    """Yield the events of all journals, each with its lines in order, and the state at rest.

    `in_table` has the version of each row: that of the row which its block has locked. `repaired` are the names of
    direct dual writes that were published again.
    """
    keys: dict[str, str] = {}
    for event in sorted(_noted(lines, repaired), key=_in_order):
        if isinstance(event, Invoke):
            keys |= {row.value: row.key for row in event.rows}
        yield event
    for body, version in in_table.items():
        yield RowAtRest(keys.get(body, ""), body, version)
    for record in in_topic:
        yield RecordAtRest(*record)


def _noted(lines: Iterable[str], repaired: Collection[str]) -> Iterator[Invoke | Ok | Fail | Unknown]:
    for line in lines:
        name, told, at, *rest = line.split(" ", 3)
        process = name.rpartition("/")[0]  # store3.17/2/5 is block 5 of thread 2 of life 17
        if told == BEGUN:
            changes = tuple(Change(rest[0], body) for body in bodies_of(name))
            sequence = None if name in repaired else rest[0]
            yield Invoke(float(at), process, name, changes, changes, None, sequence)
        elif told in _TOLD:
            yield _TOLD[told](float(at), process, name)


def _in_order(event: Invoke | Ok | Fail | Unknown) -> tuple[int, ...]:
    """Order by life and block of each process: clocks may be set, and processes are not compared by them here."""
    return tuple(int(number) for number in re.findall(r"\d+", event.dual_write))
