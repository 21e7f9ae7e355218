"""A worker of `dualwrite verify`: a process whose threads do dual writes through one pool until it is killed."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.cli.verify_table import VerifiedTable
from dualwrite.errors import OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from dualwrite.verify.history import Change, Deciding, Event, Fail, Invoke, Ok, Unknown
from dualwrite.verify.lines import line_of

LEASE_MS: Final = 2_000
"""Short, so that others soon take over the ids of a killed worker."""
_GIVES_UP: Final = 0.1
_MOST_KEYS: Final = 2
_AFTER_TROUBLE_S: Final = 0.2


@dataclass(frozen=True)
class VerifyJob:
    """The settings of every worker."""

    database_url: str
    schema: str | None
    kafka: Mapping[str, Any]
    prefix: str
    topic: str
    table: str
    keys: tuple[str, ...]
    writers: int
    pause_s: float
    """Pause between two dual writes of a thread, on average."""
    is_ordered: bool
    """Whether the records of a key stand in the order of its rows: nothing is published again here."""
    directory: Path


@dataclass(frozen=True)
class Trap:
    """An order to send oneself a signal at a pause point."""

    point: PausePoint
    signal: signal.Signals


class _GivenUpError(Exception):
    """The block rolls back by choice."""


class Notes:
    """The events of one process, in a file that outlives it. Each line is one write, which a kill does not halve."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def note(self, event: Event) -> None:
        """Add an event."""
        os.write(self._file, f"{line_of(event)}\n".encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class _Traps:
    """The worker's end of the pipe: traps, until the other end is closed."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._trap: Trap | None = None

    def listen(self, stop: threading.Event) -> None:
        """Return when told to end, or when the command has died."""
        try:
            while isinstance(order := self._pipe.recv(), Trap):
                self._trap = order
        except (EOFError, OSError):
            pass
        self._trap = None
        stop.set()

    def reach(self, point: PausePoint) -> None:
        """Send the signal if this is the trap's point."""
        trap = self._trap
        if trap is not None and trap.point is point:
            self._trap = None
            os.kill(os.getpid(), trap.signal)


class Worker:
    """One life of one process."""

    def __init__(self, job: VerifyJob, name: str, pipe: Connection) -> None:
        self._job = job
        self._name = name
        self._notes = Notes(job.directory / f"{name}.jsonl")
        self._traps = _Traps(pipe)
        self._stopped = threading.Event()
        self._running = threading.local()
        self._table = VerifiedTable(job.table, job.schema)
        # Two more than threads: work outside the blocks has connections of its own.
        engine = sa.create_engine(job.database_url, pool_size=job.writers + 2, pool_pre_ping=True)
        self._pool = DualWriter(
            engine,
            prefix=job.prefix,
            max_writers=job.writers,
            lease_ms=LEASE_MS,
            schema=job.schema,
            pause=self._reach,
            **job.kafka,
        )

    def work(self) -> None:
        """Write until told to stop."""
        threads = [threading.Thread(target=self._write_on, args=(number,)) for number in range(self._job.writers)]
        for thread in threads:
            thread.start()
        self._traps.listen(self._stopped)
        for thread in threads:
            thread.join()
        self._pool.close()

    def _reach(self, point: PausePoint) -> None:
        """Note the last moment before the decision, of the block that this thread runs."""
        block: _Block | None = getattr(self._running, "block", None)
        if block is not None and point is PausePoint.BEFORE_DATABASE_COMMIT:
            self._notes.note(block.deciding())
        self._traps.reach(point)

    def _write_on(self, thread: int) -> None:
        process = f"{self._name}/{thread}"
        chance = random.Random()
        number = 0
        while not self._stopped.wait(chance.uniform(0, 2 * self._job.pause_s)):
            number += 1
            block = _Block(self._job, process, f"{self._name}/{thread}/{number}", chance)
            self._running.block = block
            self._notes.note(block.invoke())
            told = self._write(block, gives_up=chance.random() < _GIVES_UP)
            self._running.block = None
            self._notes.note(told)
            if isinstance(told, Unknown):
                # An unknown outcome may be decided later, after the next dual write, which thus gets another process.
                process = f"{self._name}/{thread}/{number}+"
            if not isinstance(told, Ok):
                self._stopped.wait(_AFTER_TROUBLE_S)

    def _write(self, block: _Block, *, gives_up: bool) -> Ok | Fail | Unknown:
        try:
            with self._pool.transaction() as tx:
                block.tx = tx
                for change in block.changes:
                    read = self._table.put(tx.connection, change)
                    block.reads += () if read is None else (read,)
                    tx.send(self._job.topic, key=change.key, value=change.value)
                if gives_up:
                    raise _GivenUpError
        except Exception as error:
            return block.failed(error)
        return Ok(time.monotonic(), block.process, block.name)


class _Block:
    """One dual write: a row and a record for each of its keys."""

    def __init__(self, job: VerifyJob, process: str, name: str, chance: random.Random) -> None:
        # In one order, so that two blocks do not wait for each other's keys.
        keys = sorted(chance.sample(job.keys, chance.randint(1, min(_MOST_KEYS, len(job.keys)))))
        self._is_ordered = job.is_ordered
        self.process: Final = process
        self.name: Final = name
        self.changes: Final = tuple(Change(key, f"{name}.{key}") for key in keys)
        self.reads: tuple[Change, ...] = ()
        self.tx: DualTransaction | None = None

    def invoke(self) -> Invoke:
        sequence = "all" if self._is_ordered else None
        return Invoke(time.monotonic(), self.process, self.name, self.changes, self.changes, None, sequence)

    def deciding(self) -> Deciding:
        state = "" if self.tx is None else str(self.tx.prepared_state)
        return Deciding(time.monotonic(), self.process, self.name, self.reads, state or None)

    def failed(self, error: Exception) -> Ok | Fail | Unknown:
        """Return the outcome that the caller learns from an error, if any."""
        at = time.monotonic()
        outcome = None if self.tx is None else self.tx.outcome
        if outcome in (Outcome.COMMITTED, Outcome.STORED):
            return Ok(at, self.process, self.name)
        what = f"{type(error).__name__}: {error}"
        if outcome is None and isinstance(error, OutcomeUnknown):
            return Unknown(at, self.process, self.name, what)
        return Fail(at, self.process, self.name, what)


def work(job: VerifyJob, name: str, pipe: Connection) -> None:
    """Run one worker. Ctrl-C is for the command, which ends its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("dualwrite").addHandler(logging.NullHandler())  # or Python prints its warnings
    Worker(job, name, pipe).work()
