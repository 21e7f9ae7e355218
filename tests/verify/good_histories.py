"""Histories in which everything is right: a small world with locks, two-phase commit, crashes and readers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

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

KEYS: Final = "abcde"
PARTITIONS: Final = ("orders-0", "orders-1")


@dataclass
class _Stored:
    """The content of an offset; without a change, a marker."""

    dual_write: str
    change: Change | None


@dataclass
class _Running:
    invoke: Invoke
    reads: tuple[Change, ...]
    stage: int = 0
    dies: bool = False
    gives_up: bool = False
    unmarked: list[str] = field(default_factory=list)


class GoodWorld:
    """Processes that do dual writes; each call of `step` is one thing that happens. Rows are locked by key."""

    def __init__(self, chance: random.Random, processes: int = 3) -> None:
        self.events: list[Event] = []
        self._chance = chance
        self._now = 0.0
        self._count = 0
        self._processes: dict[str, _Running | None] = {f"p{number}": None for number in range(processes)}
        self._locked: set[str] = set()
        self._versions: dict[str, list[Change]] = {key: [] for key in KEYS}
        self._log: dict[str, list[_Stored]] = {partition: [] for partition in PARTITIONS}
        self._ended: dict[str, bool] = {}
        self._positions: dict[tuple[str, str], int] = {}
        self._open: dict[str, dict[str, int]] = {partition: {} for partition in PARTITIONS}

    def _tick(self) -> float:
        self._now += 1
        return self._now

    def step(self) -> None:
        if self._chance.random() < 0.3:
            self._read(f"reader {self._chance.randrange(2)}", self._chance.choice(PARTITIONS))
            return
        process = self._chance.choice(list(self._processes))
        running = self._processes[process]
        if running is None:
            self._begin(process)
        else:
            _STAGES[running.stage](self, process, running)

    # ---- a dual write ---------------------------------------------------------------------------------------

    def _begin(self, process: str) -> None:
        free = [key for key in KEYS if key not in self._locked]
        keys = self._chance.sample(free, min(len(free), self._chance.randint(1, 2)))
        if not keys:
            return
        self._count += 1
        name = f"w{self._count}"
        self._locked.update(keys)
        changes = [Change(key, f"{name}.{key}{number}") for key in keys for number in range(self._chance.randint(1, 2))]
        reads = tuple(self._versions[key][-1] for key in keys if self._versions[key])
        invoke = Invoke(self._tick(), process, name, tuple(changes), tuple(changes), "id", "id")
        self.events.append(invoke)
        self._processes[process] = _Running(
            invoke, reads, dies=self._chance.random() < 0.15, gives_up=self._chance.random() < 0.15
        )

    def _prepare(self, process: str, running: _Running) -> None:
        for change in running.invoke.records:
            partition = PARTITIONS[ord(change.key) % len(PARTITIONS)]
            name = running.invoke.dual_write
            self._open[partition].setdefault(name, len(self._log[partition]))
            self._log[partition].append(_Stored(name, change))
            if partition not in running.unmarked:
                running.unmarked.append(partition)
        running.stage = 1

    def _decide(self, process: str, running: _Running) -> None:
        name = running.invoke.dual_write
        self.events.append(Deciding(self._tick(), process, name, running.reads, _state(name)))
        if not running.gives_up:
            for change in running.invoke.rows:
                self._versions[change.key].append(change)
        self._locked -= {change.key for change in running.invoke.rows}
        self._ended[name] = not running.gives_up
        running.stage = 2

    def _mark(self, process: str, running: _Running) -> None:
        partition = running.unmarked.pop()
        name = running.invoke.dual_write
        self._log[partition].append(_Stored(name, None))
        del self._open[partition][name]
        running.stage = 2 if running.unmarked else 3

    def _end(self, process: str, running: _Running) -> None:
        name = running.invoke.dual_write
        if running.dies:
            outcome = Outcome.COMMITTED if self._ended[name] else Outcome.ROLLED_BACK
            self.events.append(Recover(self._tick(), "recovery", "id", outcome, _state(name)))
        elif self._chance.random() < 0.1:
            self.events.append(Unknown(self._tick(), process, name, "OutcomeUnknown"))
        else:
            self.events.append((Ok if self._ended[name] else Fail)(self._tick(), process, name))
        self._processes[process] = None

    # ---- readers --------------------------------------------------------------------------------------------

    def _stable(self, partition: str) -> int:
        return min(self._open[partition].values(), default=len(self._log[partition]))

    def _read(self, reader: str, partition: str) -> None:
        where = reader, partition
        begin, stable = self._positions.get(where, 0), self._stable(partition)
        end = min(stable, begin + self._chance.randint(0, 4))
        found = tuple(
            Record(offset, *stored.change)
            for offset, stored in enumerate(self._log[partition][begin:end], begin)
            if stored.change is not None and self._ended[stored.dual_write]
        )
        since = self._now
        at = self._tick()
        self.events.append(Poll(at, reader, Isolation.READ_COMMITTED, partition, found, end, stable))
        self._positions[where] = end
        if reader == "reader 0":
            self.events.append(GroupOffset(at, since, reader, "group", partition, end))

    def come_to_rest(self) -> list[Event]:
        """End all processes, and note the state."""
        for process, running in self._processes.items():
            while running is not None and self._processes[process] is running:
                _STAGES[running.stage](self, process, running)
        for partition in PARTITIONS:
            for reader in ("reader 0", "reader 1"):
                for _ in range(len(self._log[partition]) + 1):
                    self._read(reader, partition)
        for changes in self._versions.values():
            self.events += [RowAtRest(*change, version) for version, change in enumerate(changes)]
        for partition, log in self._log.items():
            for offset, stored in enumerate(log):
                if stored.change is not None and self._ended[stored.dual_write]:
                    self.events.append(RecordAtRest(partition, offset, *stored.change))
            self.events.append(PartitionAtRest(partition, len(log), len(log)))
        return self.events


_STAGES: Final[tuple[Callable[[GoodWorld, str, _Running], None], ...]] = (
    GoodWorld._prepare,
    GoodWorld._decide,
    GoodWorld._mark,
    GoodWorld._end,
)


def _state(name: str) -> str:
    return f"7:{name[1:]}"


def good_history(chance: random.Random, steps: int) -> list[Event]:
    """Return a history of about as many events."""
    world = GoodWorld(chance)
    for _ in range(steps):
        world.step()
    return world.come_to_rest()
