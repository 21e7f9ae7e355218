"""Small histories with one thing wrong each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dualwrite.verify.anomalies import Anomaly
from dualwrite.verify.history import (
    Change,
    Deciding,
    Event,
    Fail,
    GroupOffset,
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

P0: Final = "orders-0"
P1: Final = "orders-1"


class Story:
    """A history, told step by step; each step takes a second."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now = 0.0

    def _next(self) -> float:
        self._now += 1.0
        return self._now

    def begin(
        self,
        name: str,
        keys: str = "k",
        *,
        process: str = "",
        rows: bool = True,
        records: bool = True,
        sequence: str | None = "id",
    ) -> Story:
        """Its row and record of key k are "name.k"; those of a key that comes twice, "name.k", "name.k2"."""
        seen: list[str] = []
        changes = []
        for key in keys:
            seen.append(key)
            number = seen.count(key)
            changes.append(Change(key, f"{name}.{key}" + (str(number) if number > 1 else "")))
        both = tuple(changes)
        made = both if rows else (), both if records else ()
        self.events.append(Invoke(self._next(), process or name, name, *made, "id", sequence))
        return self

    def decide(self, name: str, *reads: str, consumed: Sequence[str] = (), state: str | None = None) -> Story:
        """Its reads are given as values, "name.k"."""
        at = self._next()
        self.events.append(Deciding(at, name, name, tuple(map(_read, reads)), state, tuple(map(_read, consumed))))
        return self

    def end(self, name: str, told: type[Ok | Fail | Unknown] = Ok) -> Story:
        self.events.append(told(self._next(), name, name))
        return self

    def write(self, name: str, keys: str = "k", *reads: str, process: str = "", sequence: str | None = "id") -> Story:
        """One that nothing happens to."""
        return self.begin(name, keys, process=process, sequence=sequence).decide(name, *reads).end(name)

    def recover(self, outcome: Outcome, state: str) -> Story:
        self.events.append(Recover(self._next(), "recovery", "id", outcome, state))
        return self

    def poll(
        self,
        *records: tuple[int, str],
        position: int | None = None,
        partition: str = P0,
        reader: str = "reader",
        stable: int | None = None,
        uncommitted: bool = False,
    ) -> Story:
        isolation = Isolation.READ_UNCOMMITTED if uncommitted else Isolation.READ_COMMITTED
        got = tuple(Record(offset, _read(value).key, value) for offset, value in records)
        end = got[-1].offset + 1 if position is None else position
        self.events.append(Poll(self._next(), reader, isolation, partition, got, end, stable))
        return self

    def fetch_offset(self, offset: int, *, process: str = "reader", since: float | None = None) -> Story:
        at = self._next()
        self.events.append(GroupOffset(at, at - 0.5 if since is None else since, process, "group", P0, offset))
        return self

    def rows(self, *values: str, first: int = 1) -> Story:
        """Versions in this order."""
        self.events += [RowAtRest(_read(each).key, each, place) for place, each in enumerate(values, first)]
        return self

    def log(self, *values: str, partition: str = P0, first: int = 0) -> Story:
        """Records in this order."""
        found = [(place, _read(each)) for place, each in enumerate(values, first)]
        self.events += [RecordAtRest(partition, place, each.key, each.value) for place, each in found]
        return self

    def ends(self, stable: int, high: int) -> Story:
        self.events.append(PartitionAtRest(P0, stable, high))
        return self


def _read(value: str) -> Change:
    return Change(value.partition(".")[2][:1], value)


def _story() -> Story:
    return Story()


Planted = Callable[[], Story]

PLANTED: Final[dict[Anomaly, dict[str, Planted]]] = {
    Anomaly.LOST_WRITE: {
        "told that it is committed": lambda: _story().write("a").rows("a.k"),
        "its process died": lambda: _story().begin("a").decide("a").rows("a.k"),
        "one of three": lambda: _story().write("a").write("b").write("c").rows("a.k", "b.k", "c.k").log("a.k", "c.k"),
        "two rows, no record": lambda: _story().write("a", "kl").rows("a.k", "a.l"),
        "a reader had it before": lambda: _story().write("a").poll((0, "a.k")).rows("a.k"),
    },
    Anomaly.PHANTOM: {
        "its process died": lambda: _story().begin("a").decide("a").log("a.k"),
        "nobody made the record": lambda: _story().write("a").rows("a.k").log("a.k", "x.k"),
        "nobody made the row": lambda: _story().write("a").rows("a.k", "x.k").log("a.k"),
        "outcome unknown": lambda: _story().begin("a").decide("a").end("a", Unknown).log("a.k"),
        "behind a committed one": lambda: _story().write("a").begin("b").decide("b").rows("a.k").log("a.k", "b.k"),
        "a reader got what nobody made": lambda: _story().write("a").poll((1, "x.k")).rows("a.k").log("a.k"),
        "a dual write read what nobody made": lambda: _story().write("a", "k", "x.k").rows("a.k").log("a.k"),
    },
    Anomaly.DUPLICATE: {
        "a record": lambda: _story().write("a").rows("a.k").log("a.k", "a.k"),
        "in two partitions": lambda: _story().write("a").rows("a.k").log("a.k").log("a.k", partition=P1),
        "a row": lambda: _story().write("a").rows("a.k", "a.k").log("a.k"),
        "one of two records": lambda: _story().write("a", "kl").rows("a.k", "a.l").log("a.k", "a.l", "a.k"),
        "a reader got it before, elsewhere": lambda: (
            _story().write("a").poll((0, "a.k")).rows("a.k").log("a.k", first=7)
        ),
    },
    Anomaly.TORN: {
        "one of two records": lambda: _story().write("a", "kl").rows("a.k", "a.l").log("a.l"),
        "in one of two partitions": lambda: _story().write("a", "kk").rows("a.k", "a.k2").log("a.k", partition=P1),
        "half of the rows": lambda: _story().write("a", "kl").rows("a.k").log("a.k", "a.l"),
        "a reader went past the other record": lambda: (
            _story().write("a", "kl").poll((0, "a.k"), position=2).rows("a.k", "a.l").log("a.k", "a.l")
        ),
    },
    Anomaly.ABORTED_READ: {
        "a reader": lambda: _story().begin("a").poll((0, "a.k")).end("a", Fail),
        "a reader, and its process died": lambda: _story().begin("a").decide("a").poll((0, "a.k")),
        "a dual write read the row": lambda: (
            _story().begin("a").decide("a").end("a", Fail).write("b", "k", "a.k").rows("b.k").log("b.k")
        ),
        "a dual write consumed the record": lambda: (
            (_story().begin("a").decide("a").end("a", Fail).begin("b").decide("b", consumed=["a.k"]).end("b"))
            .rows("b.k")
            .log("b.k")
        ),
    },
    Anomaly.INTERMEDIATE_READ: {
        "the first of two": lambda: (
            _story().write("a", "kk").write("b", "k", "a.k").rows("a.k", "a.k2", "b.k").log("a.k", "a.k2", "b.k")
        ),
        "beside another key": lambda: (
            _story().write("a", "kkl").write("b", "l", "a.k", "a.l").rows("a.k", "a.k2", "a.l", "b.l")
        ).log("a.k", "a.k2", "a.l", "b.l"),
        "the second of three": lambda: (
            _story().write("a", "kkk").write("b", "l", "a.k2").rows("a.k", "a.k2", "a.k3", "b.l")
        ).log("a.k", "a.k2", "a.k3", "b.l"),
    },
    Anomaly.PRECOMMITTED_READ: {
        "by a reader": lambda: _story().begin("a").poll((0, "a.k")).decide("a").end("a").rows("a.k").log("a.k"),
        "before it began": lambda: _story().poll((0, "a.k")).write("a").rows("a.k").log("a.k"),
        "by a dual write, of the row": lambda: (
            (_story().begin("a").begin("b", "l").decide("b", "a.k").decide("a").end("a").end("b"))
            .rows("a.k", "b.l")
            .log("a.k", "b.l")
        ),
        "by a dual write, of the record": lambda: (
            (_story().begin("a").begin("b", "l").decide("b", consumed=["a.k"]).decide("a").end("a").end("b"))
            .rows("a.k", "b.l")
            .log("a.k", "b.l")
        ),
    },
    Anomaly.UNSTABLE_READ: {
        "at it": lambda: _story().write("a").poll((0, "a.k"), stable=0).rows("a.k").log("a.k"),
        "behind it": lambda: (
            _story().write("a").write("b").poll((0, "a.k"), (1, "b.k"), stable=0).rows("a.k", "b.k").log("a.k", "b.k")
        ),
        "the second record of a dual write": lambda: (
            _story().write("a", "kl").poll((0, "a.k"), (1, "a.l"), stable=1).rows("a.k", "a.l").log("a.k", "a.l")
        ),
    },
    Anomaly.MISSED_READ: {
        "from the beginning": lambda: _story().poll(position=0).write("a").poll(position=2).rows("a.k").log("a.k"),
        "between two": lambda: (
            _story()
            .write("a")
            .write("b")
            .write("c")
            .poll((0, "a.k"))
            .poll((2, "c.k"))
            .rows("a.k", "b.k", "c.k")
            .log("a.k", "b.k", "c.k")
        ),
        "where it was open": lambda: (
            (_story().write("a").begin("b").poll((0, "a.k"), position=2).decide("b").end("b"))
            .rows("a.k", "b.k")
            .log("a.k", "b.k")
        ),
    },
    Anomaly.CHANGED_RECORD: {
        "another one is there now": lambda: (
            _story().write("a").write("b").poll((1, "a.k")).rows("a.k", "b.k").log("b.k", first=1)
        ),
        "two readers": lambda: (
            _story().write("a").write("b").poll((0, "a.k")).poll((0, "b.k"), reader="other").rows("a.k", "b.k")
        ),
        "read uncommitted": lambda: (
            _story().write("a").write("b").poll((0, "a.k"), uncommitted=True).rows("a.k", "b.k").log("b.k")
        ),
    },
    Anomaly.NON_MONOTONIC_POLL: {
        "the same again": lambda: _story().write("a").poll((0, "a.k")).poll((0, "a.k")).rows("a.k").log("a.k"),
        "its position": lambda: (
            _story().write("a").poll((0, "a.k"), position=2).poll(position=1).rows("a.k").log("a.k")
        ),
        "within one poll": lambda: (
            _story().write("a", "kl").poll((1, "a.l"), (0, "a.k"), position=2).rows("a.k", "a.l").log("a.k", "a.l")
        ),
        "read uncommitted": lambda: (
            (_story().write("a").poll((0, "a.k"), uncommitted=True).poll((0, "a.k"), uncommitted=True))
            .rows("a.k")
            .log("a.k")
        ),
    },
    Anomaly.OUT_OF_ORDER: {
        "in the log": lambda: _story().write("a").write("b").rows("a.k", "b.k").log("b.k", "a.k"),
        "in a log that is read backwards": lambda: (
            _story().write("a").write("b").rows("a.k", "b.k").log("a.k", first=1).log("b.k")
        ),
        "two records of one dual write": lambda: _story().write("a", "kk").rows("a.k", "a.k2").log("a.k2", "a.k"),
        "as a reader saw": lambda: (
            _story().write("a").write("b").poll((0, "b.k"), (1, "a.k")).rows("a.k", "b.k").log("b.k", "a.k")
        ),
        "one that was repaired behind its successor": lambda: (
            _story().write("a").write("b").write("c").rows("a.k", "b.k", "c.k").log("b.k", "a.k", "c.k")
        ),
    },
    Anomaly.OFFSETS_BACK: {
        "as one process saw": lambda: _story().fetch_offset(5).fetch_offset(4),
        "as two saw": lambda: _story().fetch_offset(5).fetch_offset(4, process="other"),
        "not to where it was at first": lambda: _story().fetch_offset(3).fetch_offset(5).fetch_offset(4),
        "long after": lambda: _story().fetch_offset(9).fetch_offset(9).fetch_offset(9).fetch_offset(0, process="x"),
    },
    Anomaly.TOLD_FALSELY: {
        "committed": lambda: _story().write("a"),
        "rolled back": lambda: _story().begin("a").decide("a").end("a", Fail).rows("a.k").log("a.k"),
        "records alone": lambda: _story().begin("a", rows=False).end("a", Fail).log("a.k"),
        "rows alone": lambda: _story().begin("a", records=False).end("a", Fail).rows("a.k"),
        "recovery: rolled back": lambda: (
            _story().begin("a").decide("a", state="7:0").recover(Outcome.ROLLED_BACK, "7:0").rows("a.k").log("a.k")
        ),
        "recovery: committed": lambda: _story().begin("a").decide("a", state="7:0").recover(Outcome.COMMITTED, "7:0"),
    },
    Anomaly.LOST_UPDATE: {
        "two": lambda: _same_version("a", "b"),
        "three": lambda: _same_version("a", "b", "c"),
        "beside others": lambda: (
            _same_version("b", "c").write("a", "k").write("d").rows("a.k", first=0).rows("d.k", first=9)
        ).log("a.k", "d.k", partition=P1),
    },
    Anomaly.WRITE_CYCLE: {
        "two keys": lambda: (
            _story().write("a", "kl").write("b", "kl").rows("a.k", "b.k").rows("b.l", "a.l").log("a.k", "a.l")
        ).log("b.k", "b.l", partition=P1),
        "three keys": lambda: (
            (_story().write("a", "km").write("b", "kl").write("c", "lm").rows("a.k", "b.k").rows("b.l", "c.l"))
            .rows("c.m", "a.m")
            .log("a.k", "a.m", "b.k", "b.l", "c.l", "c.m")
        ),
        "database against log": lambda: _story().write("a").write("b").rows("a.k", "b.k").log("b.k", "a.k"),
        "database against log, rows backwards": lambda: (
            _story().write("a").write("b").rows("b.k", first=2).rows("a.k").log("b.k", "a.k")
        ),
        "behind another": lambda: (
            (_story().write("z").write("a", "kl").write("b", "kl").rows("z.k", "a.k", "b.k").rows("b.l", "a.l"))
            .log("z.k", "a.k", "a.l")
            .log("b.k", "b.l", partition=P1)
        ),
        "against what a caller was told": lambda: (
            _story().write("a", process="p", sequence=None).write("b", process="p").rows("b.k", "a.k").log("b.k", "a.k")
        ),
        "against what a process began first": lambda: (
            _story().begin("a", process="p").begin("b", process="p").rows("b.k", "a.k").log("b.k", "a.k")
        ),
    },
    Anomaly.INFORMATION_CYCLE: {
        "each read the other": lambda: (
            (_story().begin("a").begin("b", "l").decide("a", "b.l").decide("b", "a.k").end("a").end("b"))
            .rows("a.k", "b.l")
            .log("a.k", "b.l")
        ),
        "read and wrote": lambda: (
            (_story().begin("a", "k").begin("b", "kl").decide("b").decide("a", "b.l").end("a").end("b"))
            .rows("a.k", "b.k", "b.l")
            .log("a.k", "b.k", "b.l")
        ),
        "consumed and wrote": lambda: (
            (_story().begin("a", "k").begin("b", "kl").decide("b").decide("a", consumed=["b.l"]).end("a").end("b"))
            .rows("a.k", "b.k", "b.l")
            .log("a.k", "b.k", "b.l")
        ),
        "three": lambda: (
            (
                _story()
                .begin("a")
                .begin("b", "l")
                .begin("c", "m")
                .decide("a", "c.m")
                .decide("b", "a.k")
                .decide("c", "b.l")
            )
            .rows("a.k", "b.l", "c.m")
            .log("a.k", "b.l", "c.m")
        ),
    },
    Anomaly.OPEN_AT_REST: {
        "nothing readable": lambda: _story().ends(0, 1),
        "the last one": lambda: _story().write("a").rows("a.k").log("a.k").ends(2, 3),
        "one whose process died": lambda: _story().write("a").begin("b").rows("a.k").log("a.k").ends(2, 4),
    },
}


def _same_version(*names: str) -> Story:
    story = _story()
    for name in names:
        story.write(name)
    for name in names:
        story.rows(f"{name}.k", first=4)
    return story.log(*(f"{name}.k" for name in names))


BESIDES: Final[dict[tuple[Anomaly, str], Anomaly]] = {
    (Anomaly.CHANGED_RECORD, "another one is there now"): Anomaly.LOST_WRITE,
    (Anomaly.CHANGED_RECORD, "two readers"): Anomaly.LOST_WRITE,
    (Anomaly.CHANGED_RECORD, "read uncommitted"): Anomaly.LOST_WRITE,
    (Anomaly.OUT_OF_ORDER, "in the log"): Anomaly.WRITE_CYCLE,
    (Anomaly.OUT_OF_ORDER, "in a log that is read backwards"): Anomaly.WRITE_CYCLE,
    (Anomaly.OUT_OF_ORDER, "as a reader saw"): Anomaly.WRITE_CYCLE,
    (Anomaly.OUT_OF_ORDER, "one that was repaired behind its successor"): Anomaly.WRITE_CYCLE,
    (Anomaly.WRITE_CYCLE, "three keys"): Anomaly.OUT_OF_ORDER,
    (Anomaly.WRITE_CYCLE, "database against log"): Anomaly.OUT_OF_ORDER,
    (Anomaly.WRITE_CYCLE, "database against log, rows backwards"): Anomaly.OUT_OF_ORDER,
    (Anomaly.INFORMATION_CYCLE, "each read the other"): Anomaly.PRECOMMITTED_READ,
    (Anomaly.INFORMATION_CYCLE, "three"): Anomaly.PRECOMMITTED_READ,
}
"""Consequences: the further anomalies of a planted history."""
