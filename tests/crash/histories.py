"""Random histories of dual writes: the order of steps, the faults, and the invariants in the end.

Each process of a history is a thread that runs only while the history lets it, from one pause point to the next. So one
thread runs at a time, and the same steps lead to the same history.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import asyncpg
import psycopg
import sqlalchemy as sa

from dualwrite.broker_emulator import CloseBefore, DropReply, Error, Fault
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import DualWriteError, IllegalStateError, OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.asyncpg.writer import AsyncpgDualTransaction, AsyncpgDualWriter
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction, PsycopgDualWriter
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyStateStore, create_state_table
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter, Resolution
from dualwrite.verify import history
from dualwrite.verify.checker import check
from dualwrite.verify.history import Change, Deciding, Event, Fail, Invoke, Ok, RecordAtRest, Recover, RowAtRest
from tests.crash.awaited import AwaitedWriter
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import InjectedError
from tests.support.conditions import until
from tests.support.databases import Database, events, unique
from tests.support.kafka_ids import kafka_id_of
from tests.support.topics import read_log

# Which transactional id each process has: three quarrel about one, and share the database with a fourth.
IDS_OF_PROCESSES = (0, 0, 0, 1)
DEADLINE_S = 60

INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError)
EXPECTED = (
    DualWriteError,
    sa.exc.SQLAlchemyError,
    psycopg.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    OSError,  # of a connection that asyncpg could not open
    InjectedError,
    *INTERRUPTIONS,
)

AnyWriter = DualWriter | PsycopgDualWriter | AwaitedWriter[AsyncpgDualWriter]
_KINDS = {None: DualWriter, "psycopg": PsycopgDualWriter, "asyncpg": AsyncpgDualWriter}

_RECOVERED = {
    Outcome.COMMITTED: history.Outcome.COMMITTED,
    Outcome.REPAIRED: history.Outcome.COMMITTED,
    Outcome.ROLLED_BACK: history.Outcome.ROLLED_BACK,
}

LOCK_TIMEOUT_MS = 30
RESOLVE_TIMEOUT_MS = 60
MAX_BLOCK_MS = 400


class Task(StrEnum):
    WRITE = "write"
    WRITE_DATABASE_ONLY = "write-database-only"
    RECOVER = "recover"


class Strike(StrEnum):
    """The faults that can strike a process while it stands at a pause point, or idles."""

    ERROR = "error"
    INTERRUPTION = "interruption"
    DATABASE_CUT = "database-cut"
    DATABASE_ANSWER_LOST = "database-answer-lost"
    COMMIT_LOST = "commit-lost"
    COMMIT_ANSWER_LOST = "commit-answer-lost"
    DATABASE_AWAY = "database-away"
    DATABASE_BACK = "database-back"
    BROKER_CUT = "broker-cut"
    BROKER_ANSWER_LOST = "broker-answer-lost"
    BROKER_REQUEST_LOST = "broker-request-lost"
    BROKER_REFUSES_TO_END = "broker-refuses-to-end"
    BROKER_AWAY = "broker-away"
    BROKER_BACK = "broker-back"


@dataclass(frozen=True)
class Start:
    """Begin a task, unless one is under way."""

    process: int
    task: Task


@dataclass(frozen=True)
class Advance:
    """Run on until it stands at pause point `to`, or to the end of the task where it does not come by there."""

    process: int
    to: PausePoint | None


@dataclass(frozen=True)
class Hit:
    process: int
    strike: Strike


@dataclass(frozen=True)
class Kill:
    """The database hears no more of it and it does not run on; a new process takes its place.

    Unlike after a real kill it does go on when everything is over, and must not be able to change a thing.
    """

    process: int


Step = Start | Advance | Hit | Kill


@dataclass
class Write:
    """One dual write, and how it ended in the eyes of its caller."""

    transactional_id: str
    number: int
    with_records: bool
    error: BaseException | None = None
    returned: bool = False
    tx: DualTransaction | PsycopgDualTransaction | AsyncpgDualTransaction | None = None

    @property
    def bodies(self) -> list[str]:
        return [f"{self.number}/{index}" for index in range(2)]

    def events(self) -> Iterator[Event]:
        """Under the row lock, the order of rows is that of commits, and so that of the records of an id."""
        changes = tuple(Change(self.transactional_id, body) for body in self.bodies)
        records = changes if self.with_records else ()
        process = str(self.number)
        yield Invoke(0.0, process, process, changes, records, self.transactional_id, self.transactional_id)
        if self.tx is not None:
            yield Deciding(0.0, process, process, (), str(self.tx.prepared_state) or None)
        if self.told is not None:
            yield (Ok if self.told is Outcome.COMMITTED else Fail)(0.0, process, process)

    @property
    def told(self) -> Outcome | None:
        """The caller's knowledge; None where the outcome is unknown."""
        if self.tx is not None and self.tx.outcome is not None:
            return self.tx.outcome
        if self.returned:
            return Outcome.COMMITTED
        if self.error is None or not isinstance(self.error, Exception) or isinstance(self.error, OutcomeUnknown):
            return None
        if self.tx is not None and not self.with_records:
            return None  # the lost commit of an ordinary database transaction
        return Outcome.ROLLED_BACK


class Process:
    """A writer in a thread that runs only when it is its turn."""

    def __init__(self, of: History, transactional_id: str, database: Database) -> None:
        self.client_id = unique("process")
        self.database = database
        self.resolutions: list[Resolution] = []
        self.errors: list[BaseException] = []
        self._history = history
        self._throw: BaseException | None = None
        self._turn = threading.Semaphore(0)
        self._pause_or_end = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._calm = False
        self._standing_at: PausePoint | None = None
        alone = of.driver_of_half if of.clients.index(database) % 2 == 0 else None
        kind: Any = _KINDS[alone]
        self._runner = asyncio.Runner() if alone == "asyncpg" else None
        made = kind(
            conninfo_of(database.engine.url) if alone else database.engine,
            bootstrap_servers=of.emulator.bootstrap_servers,
            transactional_id=transactional_id,
            create_table=False,
            pause=self._pause,
            lock_timeout_ms=LOCK_TIMEOUT_MS,
            resolve_timeout_ms=RESOLVE_TIMEOUT_MS,
            client_id=self.client_id,
            max_block_ms=MAX_BLOCK_MS,
            retry_backoff_ms=1,
            retry_backoff_max_ms=20,
            reconnect_backoff_ms=1,
            reconnect_backoff_max_ms=20,
        )
        self.writer: AnyWriter = made if self._runner is None else AwaitedWriter(self._runner, made)

    def close(self) -> None:
        self.writer.close()
        if self._runner is not None:
            self._runner.close()

    @property
    def is_awaited(self) -> bool:
        return self._runner is not None

    @property
    def busy(self) -> bool:
        return self._thread is not None

    def start(self, task: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(task,), name=self.client_id, daemon=True)
        self._thread.start()
        self._wait()

    def _run(self, task: Callable[[], None]) -> None:
        task()
        self._thread = self._standing_at = None
        self._pause_or_end.release()

    def _pause(self, point: PausePoint) -> None:
        if self._calm:
            return
        self._standing_at = point
        self._pause_or_end.release()
        assert self._turn.acquire(timeout=DEADLINE_S)
        error, self._throw = self._throw, None
        if error is not None:
            raise error

    def advance_to(self, point: PausePoint | None) -> None:
        """Run until it stands at `point`, or to the end of the task."""
        while self.busy and (point is None or self._standing_at is not point):
            self._turn.release()
            self._wait()

    def _wait(self) -> None:
        assert self._pause_or_end.acquire(timeout=DEADLINE_S), f"{self.client_id} hangs"

    def throw(self, error: BaseException) -> None:
        """Raise at the pause point where it stands, once it goes on."""
        if self.busy:
            self._throw = error

    def run_to_the_end(self) -> None:
        """Run without pauses."""
        self._calm = True
        self.advance_to(None)

    def resolve(self) -> None:
        """Remember the writer's finding, or its error."""
        try:
            self.resolutions += self.writer.recover()
        except (Exception, *INTERRUPTIONS) as error:
            self.errors.append(error)


@dataclass
class History:
    """Processes on one database and one emulator."""

    clients: list[Database]
    """One per process, and one more for the recovery at the end."""
    emulator: Emulator
    transactional_ids: list[str] = field(default_factory=lambda: [unique("a"), unique("b")])
    topic: str = field(default_factory=lambda: unique("topic"))
    writes: list[Write] = field(default_factory=list)
    killed: list[Process] = field(default_factory=list)
    driver_of_half: str | None = None
    """Every second process has no SQLAlchemy, but this driver alone."""

    def __post_init__(self) -> None:
        self.emulator.create_topic(self.topic)
        create_state_table(self.clients[-1].engine)
        for transactional_id in self.transactional_ids:
            SqlAlchemyStateStore(self.clients[-1].engine).ensure_row(transactional_id)
        self.processes = [self._new_process(index) for index in range(len(IDS_OF_PROCESSES))]

    def _new_process(self, index: int) -> Process:
        return Process(self, self.transactional_ids[IDS_OF_PROCESSES[index]], self.clients[index])

    # ---- the restless phase ---------------------------------------------------------------------------------

    def take(self, step: Step) -> None:
        """Carry out a step; one that makes no sense now does nothing."""
        process = self.processes[step.process]
        match step:
            case Start(task=task):
                if not process.busy:
                    process.start(lambda: self._do(process, task))
            case Advance(to=point):
                process.advance_to(point)
            case Hit(strike=strike):
                self._strike(process, strike)
            case Kill():
                process.database.cut()
                self.emulator.disconnect_clients(client_id=process.client_id)
                self.killed.append(process)
                self.processes[step.process] = self._new_process(step.process)

    def _do(self, process: Process, task: Task) -> None:
        if task is Task.RECOVER:
            process.resolve()
        else:
            self._write(process.writer, with_records=task is Task.WRITE)

    def _write(self, writer: AnyWriter, *, with_records: bool) -> Write:
        named = writer.awaited if isinstance(writer, AwaitedWriter) else writer
        write = Write(named.transactional_id, len(self.writes), with_records)
        self.writes.append(write)
        try:
            if isinstance(writer, AwaitedWriter):
                writer.run(self._write_awaited(writer.awaited, write))
            else:
                with writer.transaction() as write.tx:
                    for index, body in enumerate(write.bodies):
                        self._put(write.tx, write, index, body)
            write.returned = True
        except (Exception, *INTERRUPTIONS) as error:
            write.error = error
        return write

    async def _write_awaited(self, writer: AsyncpgDualWriter, write: Write) -> None:
        async with writer.transaction() as write.tx:
            for body in write.bodies:
                row = next_event_id(), write.transactional_id, body
                await write.tx.connection.execute("INSERT INTO events VALUES ($1, $2, $3)", *row)
                if write.with_records:
                    write.tx.send(self.topic, key=write.transactional_id, value=body)

    def _put(self, tx: DualTransaction | PsycopgDualTransaction, write: Write, index: int, body: str) -> None:
        row = {"id": next_event_id(), "event_key": write.transactional_id, "body": body}
        if isinstance(tx, PsycopgDualTransaction):
            tx.connection.execute("INSERT INTO events VALUES (%(id)s, %(event_key)s, %(body)s)", row)
        else:
            tx.session.execute(sa.insert(events), row)
        if write.with_records:
            tx.send(self.topic, key=write.transactional_id, value=body)

    def _strike(self, process: Process, strike: Strike) -> None:
        database, broker = process.database, self.emulator
        match strike:
            case Strike.ERROR:
                process.throw(InjectedError())
            case Strike.INTERRUPTION:
                process.throw(asyncio.CancelledError() if process.is_awaited else KeyboardInterrupt())
            case Strike.DATABASE_CUT:
                database.cut()
            case Strike.DATABASE_ANSWER_LOST:
                database.lose_answer()
            case Strike.COMMIT_LOST:
                database.lose_commit(applied=False)
            case Strike.COMMIT_ANSWER_LOST:
                database.lose_commit(applied=True)
            case Strike.DATABASE_AWAY:
                database.refuse_new_connections()
            case Strike.DATABASE_BACK:
                database.come_back()
            case Strike.BROKER_CUT:
                broker.disconnect_clients(client_id=process.client_id)
            case Strike.BROKER_ANSWER_LOST:
                broker.faults.add(Fault(client_id=process.client_id, action=DropReply()))
            case Strike.BROKER_REQUEST_LOST:
                broker.faults.add(Fault(client_id=process.client_id, action=CloseBefore()))
            case Strike.BROKER_REFUSES_TO_END:
                broker.faults.add(Fault(client_id=process.client_id, action=Error(120), api="EndTxn"))
            case Strike.BROKER_AWAY:
                broker.faults.add(Fault(client_id=process.client_id, action=CloseBefore(), count=None))
            case Strike.BROKER_BACK:
                broker.faults.clear()

    # ---- the calm phase, in which everything must come right -------------------------------------------------

    def come_right(self) -> None:
        self.emulator.faults.clear()
        for client in self.clients:
            client.come_back()
            client.disarm()
        for process in self.processes:
            process.run_to_the_end()
        for process in self.processes:
            if process.writer.state is SlotState.UNRESOLVED:
                process.resolve()
        for transactional_id in self.transactional_ids:
            self._recover_and_write(transactional_id)
        self.assert_right()
        for process in self.killed:
            process.run_to_the_end()
        self.assert_right()
        for process in [*self.processes, *self.killed]:
            process.close()

    def _recover_and_write(self, transactional_id: str) -> None:
        with DualWriter(
            self.clients[-1].engine,
            bootstrap_servers=self.emulator.bootstrap_servers,
            transactional_id=transactional_id,
        ) as writer:
            writer.recover()
            assert writer.recover() == []
            write = self._write(writer, with_records=True)
        assert write.error is None

    def assert_right(self) -> None:
        report = check(self._events())
        assert report.is_clean, str(report)
        self._assert_errors_expected()
        self._assert_nothing_open()

    def _events(self) -> Iterator[Event]:
        """The steps of all processes, in the order in which they began, and the state at rest."""
        for write in self.writes:
            yield from write.events()
        everybody = [*self.processes, *self.killed]
        for resolution in (each for process in everybody for each in process.resolutions):
            if resolution.outcome is not Outcome.NOTHING:
                found, state = _RECOVERED[resolution.outcome], str(resolution.prepared_state)
                yield Recover(0.0, "recovery", resolution.transactional_id, found, state)
        for row_id, key, body in self._in_table():
            yield RowAtRest(key, body, row_id)
        for record in read_log(self.emulator.bootstrap_servers, self.topic):
            yield RecordAtRest(*record)

    def _in_table(self) -> list[tuple[int, str, str]]:
        with self.clients[-1].engine.connect() as connection:
            ours = events.c.event_key.in_(self.transactional_ids)
            return [(each.id, each.event_key, each.body) for each in connection.execute(sa.select(events).where(ours))]

    def _assert_errors_expected(self) -> None:
        of_processes = [error for process in [*self.processes, *self.killed] for error in process.errors]
        for error in [*of_processes, *(write.error for write in self.writes if write.error is not None)]:
            assert isinstance(error, EXPECTED), f"a mistake inside the writer: {error!r}"
            assert not isinstance(error, IllegalStateError), f"nobody misused it: {error!r}"

    def _assert_nothing_open(self) -> None:
        until(lambda: not self._open_transactions())  # markers are written after the answer to EndTxn
        log = self.emulator.log(self.topic, 0)
        assert log.last_stable_offset == log.high_watermark

    def _open_transactions(self) -> list[object]:
        ours = [kafka_id_of(self.clients[-1].engine, each) for each in self.transactional_ids]
        return [
            transaction
            for transaction in self.emulator.transactions()
            if transaction.transactional_id in ours
            and transaction.state not in ("Empty", "CompleteCommit", "CompleteAbort")
        ]


_event_ids = iter(range(1, 2**31))


def next_event_id() -> int:
    """Greater than every one before: under the row lock the order of ids is the order of commits."""
    return next(_event_ids)
