"""What was seen in a simulation, and what must hold of it.

A *write* is one dual write: a row in the database, and one record in each partition, with the write's name as value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dualwrite.broker_emulator.cluster.topics import Partition
from dualwrite.broker_emulator.log.record_batch import iter_records, parse_end_txn_marker, split_batches
from tests.proof.simulation.loop import SimulatedLoop


class Told(NamedTuple):
    """What the caller of a dual write was told: an outcome, or None if it is not known."""

    write: str
    outcome: str | None


class History:
    """Everything that was seen, in order."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._position = 0
        self.events: Final[list[tuple[float, str]]] = []
        self.problems: Final[list[str]] = []
        self.told: Final[list[Told]] = []
        self.decided: Final[dict[str, str]] = {}
        """The writes that the database has decided, in order, each with its transactional id."""
        self.is_decided: Callable[[str], bool] = self.decided.__contains__

    def next_position(self) -> int:
        """Return a consumed position, greater than any before."""
        self._position += 1
        return self._position

    def note(self, text: str) -> None:
        """Add an event."""
        self.events.append((self._loop.now_s, text))

    def wrong(self, text: str) -> None:
        """Add something that must not be."""
        self.note(f"WRONG: {text}")
        self.problems.append(text)

    def tell(self, write: str, outcome: str | None, why: str) -> None:
        """Note what a caller was told."""
        self.told.append(Told(write, outcome))
        self.note(f"{self._loop.current}: {write} is {outcome or 'unknown'} {why}")

    def decide(self, write: str, transactional_id: str) -> None:
        """Note a decision: it is durable."""
        self.note(f"database: {write} of {transactional_id} is decided")
        self.decided[write] = transactional_id

    def lines(self) -> list[str]:
        """Return the events as numbered lines."""
        return [f"{number:4} {at_s:11.4f} {text}" for number, (at_s, text) in enumerate(self.events, 1)]


class Reader:
    """A consumer with read_committed that reads one partition whenever there is something to read."""

    def __init__(self, history: History, partition: Partition) -> None:
        self._history = history
        self._partition = partition
        self.position = 0
        self.seen: dict[str, int] = {}
        """The offset of each write."""
        self.follow(partition)

    def follow(self, partition: Partition) -> None:
        """Read from now on from the log of this partition: the cluster was restarted."""
        self._partition = partition
        partition.log.on_advance.append(self.read)

    def read(self) -> None:
        """Read what can be read."""
        log, history = self._partition.log, self._history
        name = f"{self._partition.topic.name}-{self._partition.index}"
        if log.last_stable_offset < self.position:
            history.wrong(f"the last stable offset of {name} went back from {self.position}")
            self.position = log.last_stable_offset
        if log.last_stable_offset == self.position:
            return
        found = log.read(self.position, max_bytes=1 << 30, read_committed=True, at_least_one=True)
        aborted = sorted(((entry.first_offset, entry.producer_id) for entry in found.aborted or ()), reverse=True)
        skipped: set[int] = set()
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
                    self._see(name, record.value.decode(), record.offset)
            self.position = header.last_offset + 1

    def _see(self, name: str, write: str, offset: int) -> None:
        history = self._history
        history.note(f"reader: {write} is visible in {name} at {offset}")
        if write in self.seen:
            history.wrong(f"{write} is visible twice in {name}: at {self.seen[write]} and {offset}")
        if not history.is_decided(write):
            history.wrong(f"{write} is visible in {name} before it was decided")
        self.seen[write] = offset


def check_at_rest(history: History, readers: list[Reader], committed: dict[str, str]) -> None:
    """Check what must hold when everything was healed and recovered. `committed`: what the database has, in order."""
    for reader, number in zip(readers, range(len(readers)), strict=True):
        for write in committed:
            if write not in reader.seen:
                history.wrong(f"{write} is committed and not visible in partition {number}")
        for write in reader.seen:
            if write not in committed:
                history.wrong(f"{write} is visible in partition {number} and not committed")
        for transactional_id in sorted(set(committed.values())):
            by_row = [write for write, its_id in committed.items() if its_id == transactional_id]
            by_log = [write for write in reader.seen if committed.get(write) == transactional_id]
            if sorted(by_row) == sorted(by_log) and by_row != by_log:
                history.wrong(f"{transactional_id}: committed in the order {by_row}, published as {by_log}")
    for write, outcome in history.told:
        if outcome == "COMMITTED" and write not in committed:
            history.wrong(f"{write} was said to be committed, and is not")
        if outcome == "ROLLED_BACK" and write in committed:
            history.wrong(f"{write} was said to be rolled back, and is committed")
