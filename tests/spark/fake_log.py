"""A log in memory that loses acknowledgements, repeats and delays records, and loses its end."""

from __future__ import annotations

import random
from collections.abc import Callable

from spark_sink.errors import CommitLogError, SinkError
from spark_sink.store.topic.log import OutOfLogError, StoredRecord


class FakePartition:
    """The log of one partition's leader."""

    def __init__(self) -> None:
        self.records: list[StoredRecord] = []
        self.start = 0
        self.epoch = 0
        self.late: list[bytes] = []
        """Copies that are under way."""
        self.clock_ms = 1_000

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def append(self, value: bytes) -> int:
        self.clock_ms += 1
        self.records.append(StoredRecord(self.end, self.epoch, self.clock_ms, value))
        return self.end - 1

    def deliver(self, which: int) -> None:
        """Let a delayed copy arrive."""
        self.append(self.late.pop(which))

    def lose_end(self, count: int) -> None:
        """Elect a leader that lacks the last records."""
        self.epoch += 1
        if count:
            del self.records[-count:]

    def delete_before(self, offset: int) -> None:
        if offset > self.end:
            raise SinkError("OFFSET_OUT_OF_RANGE")
        if offset > self.start:
            del self.records[: offset - self.start]
            self.start = offset


class FakeLog:
    """A process's connection to the partition; implements `CommitLog`."""

    name = "fake"

    def __init__(
        self, partition: FakePartition, *, chance: random.Random | None = None, pause: Callable[[], None] | None = None
    ) -> None:
        """`chance` decides about faults; None: there are none. `pause` is called before each call takes effect."""
        self._partition = partition
        self._chance = chance
        self._pause = pause or (lambda: None)
        self.away: int = 0
        """The number of calls that fail from now on, without an effect."""
        self.longest = 1 << 24

    def append(self, value: bytes) -> int:
        self._pause()
        self._check_away()
        if len(value) > self.longest:
            raise SinkError("the record is too long")
        fault = 9.0 if self._chance is None else self._chance.random()
        if fault < 0.01:
            self._partition.late.append(value)
            raise CommitLogError("no acknowledgement", is_away=True)
        offset = self._partition.append(value)
        if fault < 0.05:
            self._partition.late.append(value)
        elif fault < 0.08:
            offset = self._partition.append(value)
        elif fault < 0.095:
            raise CommitLogError("no acknowledgement", is_away=True)
        self._pause()
        return offset

    def start(self) -> int:
        self._check_away()
        return self._partition.start

    def read(self, first: int, last: int) -> list[StoredRecord]:
        self._pause()
        self._check_away()
        found = self._partition
        if not found.start <= first <= found.end or last >= found.end:
            raise OutOfLogError
        return found.records[first - found.start :]

    def delete_before(self, offset: int) -> None:
        self._check_away()
        self._partition.delete_before(offset)

    def check(self) -> None:
        self._check_away()

    def create(self) -> None:
        self._check_away()

    def _check_away(self) -> None:
        if self.away:
            self.away -= 1
            raise CommitLogError("the leader is away", is_away=True)
