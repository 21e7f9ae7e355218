"""The result of a chaos test run as a history: from the journals, the table and the topic.

A key that is not the name of its block has one writer at a time, whose id is a sequence (`Invoke.sequence`). The lives
of that writer are one process, as the next one begins when the one before is dead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from dualwrite.verify.history import Change, Event, Fail, Invoke, Ok, RecordAtRest, RowAtRest, Unknown
from tests.crash.chaos_job import BEGUN, COMMITTED, LOST, ROLLED_BACK, UNKNOWN, bodies_of
from tests.support.topics import Read

_TOLD: Mapping[str, type[Ok | Fail | Unknown]] = {
    # Lost: the database has committed, as its caller learned; the message itself is a mistake.
    **{COMMITTED: Ok, LOST: Ok},
    **{ROLLED_BACK: Fail, UNKNOWN: Unknown},
}


def history_of(lines: Iterable[str], in_table: Mapping[str, int], in_topic: Iterable[Read]) -> Iterator[Event]:
    """Yield the events of all journals, each with its lines in order, and the state at rest.

    The versions of a key are the database transactions that wrote its rows, in their order.
    """
    keys: dict[str, str] = {}
    for event in sorted(_noted(lines), key=_in_order):
        if isinstance(event, Invoke):
            keys |= {row.value: row.key for row in event.rows}
        yield event
    for body, xid in in_table.items():
        yield RowAtRest(keys.get(body, ""), body, xid)
    for record in in_topic:
        yield RecordAtRest(*record)


def _noted(lines: Iterable[str]) -> Iterator[Invoke | Ok | Fail | Unknown]:
    for line in lines:
        name, told, at, *rest = line.split(" ", 3)
        if told == BEGUN:
            yield _invoke(name, float(at), rest[0] if rest else name)
        elif told in _TOLD:
            yield _TOLD[told](float(at), _process_of(name), name)


def _invoke(name: str, at_s: float, key: str) -> Invoke:
    changes = tuple(Change(key, body) for body in bodies_of(name))
    is_only = key != name
    return Invoke(at_s, key if is_only else _process_of(name), name, changes, changes, None, key if is_only else None)


def _process_of(name: str) -> str:
    """Return the process that does one block after the other: w3.17/5 is block 5 of the only thread of life 17."""
    return name.rpartition("/")[0]


def _in_order(event: Invoke | Ok | Fail | Unknown) -> tuple[int, ...]:
    """Order by life and block of each process: clocks may be set, and processes are not compared by them here."""
    return tuple(int(number) for number in re.findall(r"\d+", event.dual_write))
