"""A model of the processes of a sink, without Spark: they can die and stall at every pause point.

Processes are greenlets: one runs until it ends or stalls, so the test determines every interleaving. A process that
stalls inside a database transaction keeps its locks, and another one would wait for them forever; so at those points
processes only die.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import greenlet
import pyarrow as pa
import sqlalchemy as sa

from spark_sink.driver.finisher import CommitSummary
from spark_sink.driver.protocol import Sink
from spark_sink.handoff import Plan, TaskIdentity, TaskResult
from spark_sink.options import OnNewCheckpoint, SinkOptions, StoreOptions, TxnMode
from spark_sink.pause_points import PausePoint
from spark_sink.store.attempt_states import LIVE
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.tables import BatchStatus
from tests.spark.fake_kafka import FakeBroker, FakeKafkaSide
from tests.spark.topic_stores import AnyStore, opened_by_another_process
from tests.support.databases import unique

ResultT = TypeVar("ResultT")

SCHEMA: Final = pa.schema([("value", pa.string())])
IN_TRANSACTION: Final = frozenset({PausePoint.BEFORE_PREPARED, PausePoint.INSIDE_DECISION})
QUERY: Final = "query-1"


target: Final = sa.Table(
    "target", sa.MetaData(), sa.Column("sink_id", sa.String(100)), sa.Column("value", sa.BigInteger)
)


def new_store(engine: sa.Engine) -> CommitStore:
    """Make a store with its tables, and the table that decisions write to."""
    store = CommitStore(engine)
    store.create_tables()
    target.metadata.create_all(engine)
    return store


class Crash(BaseException):
    """The process was killed here. No code may catch this and continue."""


def sink_options(sink_id: str, **changes: Any) -> SinkOptions:
    values: dict[str, Any] = {
        "sink_id": sink_id,
        "kafka": {"bootstrap.servers": "nowhere:9092"},
        "topic": "orders",
        "include_headers": False,
        "store": StoreOptions(url=None, url_env=None, schema=None),
        "txn_mode": TxnMode.AUTO,
        "txn_timeout_ms": 900_000,
        "on_new_checkpoint": OnNewCheckpoint.FAIL,
        "dual": None,
        "commit_parallelism": 4,
        "commit_retries": 2,
        "retention_batches": 100,
        "checkpoint_location": None,
        "job_id": None,
    }
    return SinkOptions(**(values | changes))


class World:
    """One sink: its brokers, its store, and the table that `sql_fn` writes to."""

    def __init__(self, store: AnyStore, **options: Any) -> None:
        """`store` may be shared: the sink has an id of its own."""
        self.broker = FakeBroker()
        self.options = sink_options(**({"sink_id": unique("sink").replace("-", "_")} | options))
        self.store = store

    @property
    def database(self) -> CommitStore:
        """The store, which is in a database."""
        assert isinstance(self.store, CommitStore)
        return self.store

    def process(self, pause: Callable[[PausePoint], None] | None = None, **options: Any) -> Process:
        return Process(self, pause or (lambda point: None), **options)

    @property
    def rows(self) -> list[int]:
        """Return the rows of the table; those in Kafka if the store has none."""
        if not isinstance(self.store, CommitStore):
            return self.broker.committed
        query = sa.select(target.c.value).where(target.c.sink_id == self.options.sink_id)
        with self.database.engine.connect() as connection:
            return list(connection.scalars(query))

    def assert_exactly_once(self, expected: Sequence[int]) -> None:
        """Check that every input row is in Kafka and in the table once, and that nothing is left open."""
        assert sorted(self.broker.committed) == sorted(expected)
        assert sorted(self.rows) == sorted(expected)
        assert self.broker.open_ids == []
        assert self.store.attempts(self.options.sink_id, LIVE) == []
        assert {batch.status for batch in self.store.batches(self.options.sink_id)} <= {BatchStatus.DONE}


class Process:
    """One process of a query, with a `Sink` of its own; after a Crash it is dead."""

    def __init__(self, world: World, pause: Callable[[PausePoint], None], **options: Any) -> None:
        self._world = world
        self._pause = pause
        self.kafka = FakeKafkaSide(world.broker, self._reach)
        self.sink = Sink(
            sink_options(world.options.sink_id, **options) if options else world.options,
            opened_by_another_process(world.store),
            self.kafka,
            pause=self._reach,
            sleep=self._wait,
        )
        self.waits_s: list[float] = []
        self.while_waiting: Callable[[], None] = lambda: None

    def _wait(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.while_waiting()

    def _reach(self, point: PausePoint) -> None:
        try:
            self._pause(point)
        except BaseException:
            self.kafka.dead = True
            raise

    def plan(self, query_id: str | None = QUERY) -> Plan:
        return self.sink.plan(SCHEMA, query_id=query_id)

    def write(
        self, plan: Plan, batch_id: int, partition_id: int, values: Sequence[int], query_id: str = QUERY
    ) -> TaskResult:
        return self.sink.write(plan, task(batch_id, partition_id, query_id), batches(values))

    def commit(
        self,
        results: Sequence[TaskResult],
        batch_id: int,
        values: Sequence[int] = (),
        query_id: str = QUERY,
        digest: str | None = "input",
    ) -> CommitSummary:
        return self.sink.commit(
            results, query_id=query_id, batch_id=batch_id, offsets_digest=digest, sql_fn=self._insert(values)
        )

    def abort(
        self,
        results: Sequence[TaskResult],
        batch_id: int,
        query_id: str | None = QUERY,
        generation: int | None = None,
    ) -> None:
        self.sink.abort(results, query_id=query_id, batch_id=batch_id, generation=generation)

    def _insert(self, values: Sequence[int]) -> Callable[[sa.Connection, int], None] | None:
        if not isinstance(self._world.store, CommitStore):
            return None
        rows = [{"sink_id": self._world.options.sink_id, "value": value} for value in values]

        def insert(connection: sa.Connection, batch_id: int) -> None:
            if rows:
                connection.execute(sa.insert(target), rows)

        return insert


class Stalling:
    """The work of one or more processes, in a greenlet that stalls at given pause points."""

    def __init__(self, call: Callable[[Stalling], object]) -> None:
        """`call` gets this object, and gives its `reach` to the processes that it makes."""
        self._call = call
        self._greenlet = greenlet.greenlet(self._run)
        self._points_left: float = 0
        self._stop_at: PausePoint | None = None
        self.point: PausePoint | None = None
        """Its present pause point."""
        self.result: Any = None
        self.error: Exception | None = None

    def _run(self) -> None:
        try:
            self.result = self._call(self)
        except Exception as error:
            self.error = error
        except Crash:
            return

    def reach(self, point: PausePoint) -> None:
        if point in IN_TRANSACTION:
            return
        self._points_left -= 1
        if self._points_left <= 0 or point is self._stop_at:
            self.point = point
            parent = greenlet.getcurrent().parent
            assert parent is not None
            parent.switch()

    def until(self, stop: PausePoint | int) -> Stalling:
        """Run until it reaches this point; or, given a number, so many points or its end."""
        self._points_left = stop if isinstance(stop, int) else math.inf
        self._stop_at = stop if isinstance(stop, PausePoint) else None
        self.point = None
        self._greenlet.switch()
        assert self.point is stop or isinstance(stop, int), f"{stop} was not reached: {self.error or 'it has ended'}"
        return self

    def go_on(self) -> Stalling:
        """Run to the end, by return or by exception."""
        if not self.is_over:
            self._points_left, self._stop_at, self.point = math.inf, None, None
            self._greenlet.switch()
        return self

    def kill(self) -> None:
        """Kill it where it stalls."""
        self._greenlet.throw(Crash(self.point))
        assert self.is_over

    @property
    def is_over(self) -> bool:
        return bool(self._greenlet.dead)


def batches(values: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Return two Arrow batches, so that a process can stop between them."""
    half = (len(values) + 1) // 2
    for part in (values[:half], values[half:]):
        yield pa.record_batch([pa.array(map(str, part), pa.string())], schema=SCHEMA)


_task_attempts = itertools.count(1)


def task(batch_id: int, partition_id: int, query_id: str = QUERY) -> TaskIdentity:
    return TaskIdentity(query_id, batch_id, partition_id, next(_task_attempts), "host-1")


def partitioned(values: Sequence[int], partitions: int) -> list[list[int]]:
    """Split the input round robin; some parts may be empty."""
    return [list(values[number::partitions]) for number in range(partitions)]


def run_batch(process: Process, batch_id: int, values: Sequence[int], partitions: int = 2) -> CommitSummary:
    """Do PLAN, every WRITE and COMMIT, as Spark does if nothing fails."""
    plan = process.plan()
    results = [process.write(plan, batch_id, n, part) for n, part in enumerate(partitioned(values, partitions))]
    return process.commit(results, batch_id, values)
