"""The observations of a simulation: callers' results, decisions, and reads.

A *write* is one dual write: a row in the database, and one record in each partition, with the write's name as value.
`judge.py` has the invariants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dualwrite.broker_emulator.log.record_batch import iter_records, parse_end_txn_marker, split_batches
from dualwrite.broker_emulator.topics.topics import Partition
from dualwrite.recipes.core.dual_write import Resolution
from tests.proof.simulation.loop import SimulatedLoop


class Begun(NamedTuple):
    """A dual write that a process has begun."""

    at_s: float
    process: str
    write: str


class Decided(NamedTuple):
    """A dual write that the database has decided: it is durable."""

    at_s: float
    transactional_id: str
    prepared_state: str


class Recovered(NamedTuple):
    """The result of recover()."""

    at_s: float
    process: str
    found: Resolution


class Got(NamedTuple):
    """A reader's result at a time: writes with their offsets."""

    at_s: float
    records: tuple[tuple[int, str], ...]
    position: int
    last_stable_offset: int


class Told(NamedTuple):
    """A caller's result of a dual write: an outcome, or None if it is not known."""

    at_s: float
    write: str
    outcome: str | None
    why: str


class History:
    """All observations, in order."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._position = 0
        self.events: Final[list[tuple[float, str]]] = []
        self.problems: Final[list[str]] = []
        self.begun: Final[list[Begun]] = []
        self.told: Final[list[Told]] = []
        self.recovered: Final[list[Recovered]] = []
        self.decided: Final[dict[str, Decided]] = {}
        """Decisions by write, in the database's order."""
        self.is_decided: Callable[[str], bool] = self.decided.__contains__

    def next_position(self) -> int:
        """Return a consumed position, greater than any before."""
        self._position += 1
        return self._position

    def note(self, text: str) -> None:
        """Add an event."""
        self.events.append((self._loop.now_s, text))

    def wrong(self, text: str) -> None:
        """Add an error."""
        self.note(f"WRONG: {text}")
        self.problems.append(text)

    def begin(self, write: str) -> None:
        """Note that a block begins."""
        self.begun.append(Begun(self._loop.now_s, str(self._loop.current), write))

    def recover(self, found: Resolution) -> None:
        """Note the result of recover()."""
        self.recovered.append(Recovered(self._loop.now_s, str(self._loop.current), found))

    def tell(self, write: str, outcome: str | None, why: str) -> None:
        """Note a caller's result."""
        self.told.append(Told(self._loop.now_s, write, outcome, why))
        self.note(f"{self._loop.current}: {write} is {outcome or 'unknown'} {why}")

    def decide(self, write: str, transactional_id: str, prepared_state: str) -> None:
        """Note a decision: it is durable."""
        self.note(f"database: {write} of {transactional_id} is decided")
        self.decided[write] = Decided(self._loop.now_s, transactional_id, prepared_state)

    def get(self, records: list[tuple[int, str]], position: int, last_stable_offset: int) -> Got:
        """Return a reader's present result."""
        return Got(self._loop.now_s, tuple(records), position, last_stable_offset)

    def lines(self) -> list[str]:
        """Return the events as numbered lines."""
        return [f"{number:4} {at_s:11.4f} {text}" for number, (at_s, text) in enumerate(self.events, 1)]


class Reader:
    """A consumer with read_committed that reads one partition whenever there are new records."""

    def __init__(self, history: History, partition: Partition) -> None:
        self._history = history
        self.partition = partition
        self.position = 0
        self.got: list[Got] = []
        self.follow(partition)

    @property
    def name(self) -> str:
        """The partition, as Kafka prints it."""
        return f"{self.partition.topic.name}-{self.partition.index}"

    @property
    def ends(self) -> tuple[int, int]:
        """The last stable offset, and the end of the log."""
        return self.partition.log.last_stable_offset, self.partition.log.log_end_offset

    def follow(self, partition: Partition) -> None:
        """Read from now on from the log of this partition: the cluster was restarted."""
        self.partition = partition
        partition.log.on_advance.append(self.read)

    def read(self) -> None:
        """Read all readable records."""
        history, stable = self._history, self.partition.log.last_stable_offset
        if stable < self.position:
            history.wrong(f"the last stable offset of {self.name} went back from {self.position}")
            self.position = stable
        if stable == self.position:
            return
        records, self.position = read_committed(self.partition, self.position)
        self.got.append(history.get(records, self.position, stable))
        for offset, write in records:
            history.note(f"reader: {write} is visible in {self.name} at {offset}")
            if not history.is_decided(write):
                history.wrong(f"{write} is visible in {self.name} before it was decided")

    def at_rest(self) -> list[tuple[int, str]]:
        """Return the records that a new reader gets."""
        return read_committed(self.partition, 0)[0]


def read_committed(partition: Partition, position: int) -> tuple[list[tuple[int, str]], int]:
    """Return the writes that are visible from a position on, with their offsets, and the next position."""
    found = partition.log.read(position, max_bytes=1 << 30, read_committed=True, at_least_one=True)
    aborted = sorted(((entry.first_offset, entry.producer_id) for entry in found.aborted or ()), reverse=True)
    skipped: set[int] = set()
    records: list[tuple[int, str]] = []
    for header, batch in split_batches(found.records):
        while aborted and aborted[-1][0] <= header.last_offset:
            skipped.add(aborted.pop()[1])
        if header.is_control:
            marker = parse_end_txn_marker(next(iter_records(batch)))
            if marker is not None and not marker.commit:
                skipped.discard(header.producer_id)
        elif header.producer_id not in skipped or not header.is_transactional:
            for record in iter_records(batch):
                assert record.value is not None
                records.append((record.offset, record.value.decode()))
        position = header.last_offset + 1
    return records, position
