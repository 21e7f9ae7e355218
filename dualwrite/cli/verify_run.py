"""A run of `dualwrite verify`: workers write, are killed and frozen; then their transactions are recovered and read."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.cli.verify_kafka import CannotRunError, Reader, Topic
from dualwrite.cli.verify_table import VerifiedTable
from dualwrite.cli.verify_worker import LEASE_MS, Notes, Trap, VerifyJob, work
from dualwrite.errors import DualWriteError
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.recovery.service import Found, RecoveryService
from dualwrite.recipes.sqlalchemy.state_table import create_state_table, kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import create_lease_table, in_schema, kafka_transaction_lease
from dualwrite.verify.anomalies import Report
from dualwrite.verify.checker import check
from dualwrite.verify.history import Event
from dualwrite.verify.lines import event_of

KEYS: Final = 24
_PAUSE_S: Final = (0.3, 1.2)
"""Pause between two kills or freezes."""
_START_S: Final = 60.0
"""Time for workers to begin."""
_FROZEN_S: Final = (0.1, 3.0)
"""Durations of a freeze: shorter than a lease, and longer."""
_END_S: Final = 20.0
"""Time for workers to end."""
_AGAIN_S: Final = 0.3
_COMMITTED: Final = b'"event":"ok"'
_DEEDS: Final[Mapping[str, float]] = {"killed": 2, "killed at": 3, "frozen": 2, "frozen at": 2}


def prefix_of(run: str) -> str:
    """Return the prefix of the transactional ids of a run."""
    return f"dualwrite-verify-{run}"


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    run: str
    """Part of every name."""
    topic: str
    seconds: float
    workers: int
    writers: int
    rate: float
    partitions: int
    replication_factor: int
    settle_s: float
    keep: bool
    is_ordered: bool
    schema: str | None

    @property
    def prefix(self) -> str:
        """The prefix of the transactional ids."""
        return prefix_of(self.run)

    @property
    def table(self) -> str:
        """The table's name, with no character that has to be quoted."""
        return f"dualwrite_verify_{self.run}"


@dataclass
class Verified:
    """The result of a run."""

    report: Report
    unsettled: list[str]
    """Transactions that recovery could not complete in time."""
    deeds: Counter[str]
    history: list[Event]
    left: list[str] = field(default_factory=list)
    """Objects that the run has left behind."""

    @property
    def is_clean(self) -> bool:
        """Whether there is no fault."""
        return self.report.is_clean and not self.unsettled


@dataclass
class _Living:
    process: SpawnProcess
    pipe: Connection
    name: str
    wakes_at_s: float | None = None
    """When to wake it, if it was frozen or may be at any moment."""
    has_written: bool = False


class Workers:
    """The worker processes. Only these are ever signalled, by their handles."""

    def __init__(self, job: VerifyJob, count: int, deeds: Counter[str]) -> None:
        self._job = job
        self._context = multiprocessing.get_context("spawn")
        self._chance = random.Random()
        self._lives = 0
        self._deeds = deeds
        self._living: list[_Living] = [self._start() for _ in range(count)]

    def _start(self) -> _Living:
        self._lives += 1
        name = f"w{self._lives}"
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(self._job, name, theirs), name=name, daemon=True)
        process.start()
        theirs.close()
        return _Living(process, ours, name)

    def begin(self) -> None:
        """Wait until each worker has committed a dual write. Raises CannotRunError if that takes too long."""
        deadline_s = time.monotonic() + _START_S
        while not all(map(self._is_writing, self._living)):
            if time.monotonic() > deadline_s:
                raise CannotRunError(f"the workers have not committed a dual write each within {_START_S:g} s")
            if dead := [one.process.exitcode for one in self._living if not one.process.is_alive()]:
                raise CannotRunError(f"workers have ended before they began to write, with exit codes {dead}")
            time.sleep(0.05)

    def _is_writing(self, one: _Living) -> bool:
        """Return whether it has committed a dual write: killing a worker that only starts proves nothing."""
        path = self._job.directory / f"{one.name}.jsonl"
        one.has_written = one.has_written or (path.exists() and _COMMITTED in path.read_bytes())
        return one.has_written

    def rage(self, seconds: float) -> None:
        """Kill and freeze workers at random, and start others in their place."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, self._chance.uniform(*_PAUSE_S)))
            self._replace_the_dead()
            self._wake(time.monotonic())
            if writing := list(filter(self._is_writing, self._living)):
                (deed,) = self._chance.choices(list(_DEEDS), list(_DEEDS.values()))
                self._do(deed, self._chance.choice(writing))

    def _do(self, deed: str, one: _Living) -> None:
        stop = signal.SIGKILL if deed.startswith("killed") else signal.SIGSTOP
        if stop is signal.SIGSTOP:
            one.wakes_at_s = time.monotonic() + self._chance.uniform(*_FROZEN_S)
        if not deed.endswith("at"):
            self._deeds[deed] += 1
            _signal(one.process, stop)
            return
        point = self._chance.choice(list(PausePoint))
        self._deeds[f"{deed} {point}"] += 1
        with suppress(OSError):
            one.pipe.send(Trap(point, stop))

    def _wake(self, now_s: float) -> None:
        for one in self._living:
            if one.wakes_at_s is not None and one.wakes_at_s <= now_s:
                _signal(one.process, signal.SIGCONT)

    def _replace_the_dead(self) -> None:
        for number, one in enumerate(self._living):
            if not one.process.is_alive():
                one.process.join()
                one.pipe.close()
                self._living[number] = self._start()

    def end(self) -> None:
        """Let half of the workers end normally, and kill the others."""
        for number, one in enumerate(self._living):
            if number % 2:
                one.process.kill()
            else:
                with suppress(OSError):
                    one.pipe.send(None)
        deadline_s = time.monotonic() + _END_S
        while any(one.process.is_alive() for one in self._living) and time.monotonic() < deadline_s:
            self._wake_all()
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """Kill all of them now."""
        for one in self._living:
            one.process.kill()
            one.process.join()

    def _wake_all(self) -> None:
        """Wake all frozen workers, also those whose traps spring only now."""
        for one in self._living:
            _signal(one.process, signal.SIGCONT)


def _signal(process: SpawnProcess, number: signal.Signals) -> None:
    """Send a signal to a child that was not joined yet, so that no other process has its number."""
    if process.pid is not None and process.is_alive():
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


class Run:
    """One run. Its topic, table and rows are removed at its end, unless they are evidence."""

    def __init__(
        self, plan: Plan, engine: sa.Engine, database_url: str, kafka: Mapping[str, Any], timeout_ms: int
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._kafka = dict(kafka)
        self._timeout_ms = timeout_ms
        self._database_url = database_url
        self._topic = Topic(plan.topic, kafka, timeout_ms)
        self._table = VerifiedTable(plan.table, plan.schema)
        self._keys = tuple(f"key-{number:02}" for number in range(KEYS))

    def verify(self, directory: Path, say: Callable[[str], None]) -> Verified:
        """Do everything. Raises CannotRunError, and the errors of database and Kafka, after cleaning up."""
        create_state_table(self._engine, self._plan.schema)
        create_lease_table(self._engine, self._plan.schema)
        self._topic.create(self._plan.partitions, self._plan.replication_factor)
        try:
            self._table.create(self._engine, self._keys)
            verified = self._written_and_read(directory, say)
        except BaseException:
            self._give_up(say)
            raise
        if self._plan.keep or not verified.is_clean:
            verified.left += self._made()
        else:
            verified.left += self._remove()
        return verified

    def _give_up(self, say: Callable[[str], None]) -> None:
        """Leave no transaction open, even after Ctrl-C: on tiers 1 and 2 Kafka keeps a prepared one for ever."""
        say("giving up: recovering the workers' transactions")
        try:
            unsettled = self._recovered()
        except (DualWriteError, SQLAlchemyError) as error:
            unsettled = [f"recovery failed: {error}"]
        for each in [*unsettled, *(self._made() if unsettled else self._remove())]:
            say(f"left: {each}")
        if unsettled:
            say(f"complete it with `dualwrite recover --prefix {self._plan.prefix}- --min-age 0 --apply`")

    # ---- writing --------------------------------------------------------------------------------------------

    def _job(self, directory: Path) -> VerifyJob:
        plan = self._plan
        return VerifyJob(
            database_url=self._database_url,
            schema=plan.schema,
            kafka=self._kafka,
            prefix=plan.prefix,
            topic=plan.topic,
            table=plan.table,
            keys=self._keys,
            writers=plan.writers,
            pause_s=plan.workers * plan.writers / plan.rate,
            is_ordered=plan.is_ordered,
            directory=directory,
        )

    def _written_and_read(self, directory: Path, say: Callable[[str], None]) -> Verified:
        deeds: Counter[str] = Counter()
        notes = Notes(directory / "reader.jsonl")
        reader = Reader(self._topic, "reader", notes.note)
        with ExitStack() as stack:
            stack.callback(notes.close)
            reader.start()
            stack.callback(reader.stop)
            with self._workers(directory, deeds) as workers:
                workers.begin()
                say(f"writing for {self._plan.seconds:g} s")
                workers.rage(self._plan.seconds)
                workers.end()
            say("recovering")
            unsettled = self._recovered()
            say("reading")
            deadline_s = time.monotonic() + self._plan.settle_s
            ends = self._topic.wait_until_readable(deadline_s)
            deadline_s = time.monotonic() + self._plan.settle_s
            records = self._topic.read(ends, deadline_s)
            reader.finish(ends, deadline_s)
        history = [*noted(directory), *self._table.read(self._engine), *records, *ends]
        return Verified(check(history), unsettled, deeds, history)

    @contextmanager
    def _workers(self, directory: Path, deeds: Counter[str]) -> Iterator[Workers]:
        workers = Workers(self._job(directory), self._plan.workers, deeds)
        try:
            yield workers
        finally:
            workers.kill()

    def _recovered(self) -> list[str]:
        """Recover until no transaction is left or the time limit has passed; return the rest."""
        time.sleep(LEASE_MS / 1000)
        deadline_s = time.monotonic() + self._plan.settle_s
        with RecoveryService(
            self._engine,
            prefix=f"{self._plan.prefix}-",
            min_age_ms=0,
            schema=self._plan.schema,
            timeout_ms=self._timeout_ms,
            **self._kafka,
        ) as service:
            while True:
                report = service.recover()
                if not report.found and not report.unseen:
                    return []
                if time.monotonic() > deadline_s:
                    return [*map(_left, report.found), *report.unseen]
                time.sleep(_AGAIN_S)

    # ---- the end --------------------------------------------------------------------------------------------

    def _made(self) -> dict[str, Callable[[], None]]:
        """Return the objects that the run has made, each with a function that removes it.

        The rows come last: they show the decisions.
        """
        return {
            f"the topic {self._plan.topic}": self._topic.delete,
            f"the table {self._table.name}": lambda: self._table.drop(self._engine),
            f"the rows of the ids {self._plan.prefix}-*": self._delete_rows,
        }

    def _remove(self) -> list[str]:
        """Remove the objects; return those that could not be removed."""
        left: list[str] = []
        for name, remove in self._made().items():
            try:
                remove()
            except (CannotRunError, DualWriteError, SQLAlchemyError) as error:
                left.append(f"{name} ({error})")
        return left

    def _delete_rows(self) -> None:
        """Delete the rows of the slots: no transaction is open under their ids, and no other run has them."""
        leases = in_schema(kafka_transaction_lease, self._plan.schema)
        states = in_schema(kafka_transaction_state, self._plan.schema)
        with self._engine.begin() as connection:
            mine = leases.c.prefix == self._plan.prefix
            slots = list(connection.scalars(sa.select(leases.c.slot).where(mine)))
            ids = [f"{self._plan.prefix}-{slot}" for slot in slots]
            connection.execute(sa.delete(states).where(states.c.transactional_id.in_(ids)))
            connection.execute(sa.delete(leases).where(mine))


def _left(found: Found) -> str:
    why = f": {found.error}" if found.error else ""
    return f"{found.transactional_id} could not be completed in time ({found.action}){why}"


def noted(directory: Path) -> Iterator[Event]:
    """Yield the events that the processes of a run have noted. The last line of a killed one may be incomplete."""
    for path in sorted(directory.glob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield event_of(line)
