"""Simulations of the Spark protocol: drivers and tasks that die and sleep at every pause point, and their zombies.

The processes are the sink's own code with the producer for threads (`blocking.py`), on the simulated brokers and
network; the commit store is an SQLite in memory, whose transactions are carried out at once. A query has some batches
of two partitions. Its driver plans a batch, starts tasks, repeats those that fail, and commits. If the driver dies, or
seems dead, another one begins with the batch that was not acknowledged, as Spark does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from dualwrite.errors import DualWriteError
from dualwrite.guarantee import Tier
from spark_sink.driver.protocol import Sink
from spark_sink.errors import SinkError
from spark_sink.handoff import Plan, TaskIdentity, TaskResult
from spark_sink.options import SinkOptions
from spark_sink.pause_points import PausePoint
from spark_sink.sink_kafka import ProducerSinkKafka
from spark_sink.store.attempt_states import LIVE
from spark_sink.store.commit_store import CommitStore
from tests.proof.simulation import blocking
from tests.proof.simulation.brokers import TOPIC, Brokers
from tests.proof.simulation.history import History
from tests.proof.simulation.loop import Process, SimulatedLoop
from tests.spark.sink_model import IN_TRANSACTION, QUERY, SCHEMA, Crash, batches, new_store, sink_options, target

EXPECTED: Final = (DualWriteError, SinkError)
_TASK_TIMEOUT_S: Final = 25.0
_TRIES: Final = 4
_PARTITIONS: Final = 2
_ROWS: Final = 2


@cache
def _shared_store() -> tuple[CommitStore, list[sa.Table]]:
    engine = sa.create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    store = new_store(engine)
    found = sa.MetaData()
    found.reflect(engine)
    return store, found.sorted_tables


def empty_store() -> CommitStore:
    """Return the store that simulations use one after the other, empty."""
    store, tables = _shared_store()
    with store.engine.begin() as connection:
        for table in reversed(tables):
            connection.execute(sa.delete(table))
    return store


class Query:
    """A query, and how far it has come, as its checkpoint knows."""

    def __init__(
        self, loop: SimulatedLoop, history: History, brokers: Brokers, random: Random, seed: int, batch_count: int
    ) -> None:
        self.store: Final = empty_store()
        self.sink_id: Final = f"sink_{seed}"
        self.batch_count: Final = batch_count
        self.acknowledged = 0
        """How many batches are acknowledged."""
        self._loop = loop
        self._history = history
        self._brokers = brokers
        self._random = random
        self._timeout_ms = random.choice((3_000, 8_000, 60_000))
        self._attempts = itertools.count(1)
        self._mishap = random.choice((0.0, 0.03, 0.08))
        self.kill: Callable[[Process], None]
        """Kills a process."""
        self.began: Callable[[Process], None]
        """Called when a task begins."""
        self.ended: Callable[[Process], None]
        """Called when it has ended."""
        self.is_calm = False
        """Whether nothing goes wrong any more."""

    @property
    def is_over(self) -> bool:
        """Whether all batches are acknowledged."""
        return self.acknowledged == self.batch_count

    def values(self, batch: int) -> list[int]:
        """Return the rows of a batch."""
        size = _PARTITIONS * _ROWS
        return list(range(batch * size, (batch + 1) * size))

    def is_decided(self, value: int) -> bool:
        """Return whether the batch of a row is decided."""
        return self.store.is_decided(self.sink_id, QUERY, value // (_PARTITIONS * _ROWS))

    def rows(self) -> list[int]:
        """Return the rows of the table."""
        with self.store.engine.connect() as connection:
            found = connection.scalars(sa.select(target.c.value).where(target.c.sink_id == self.sink_id))
            return sorted(found)

    # ---- processes ------------------------------------------------------------------------------------------

    def _sink(self, process: Process) -> Sink:
        def pause(point: PausePoint) -> None:
            self._reach(process, point)

        options = self._options(process)
        kafka = ProducerSinkKafka(options, pause=pause if self._random.random() < 0.3 else None)
        return Sink(options, self.store, kafka, pause=pause, sleep=blocking.sleep)

    def _options(self, process: Process) -> SinkOptions:
        kafka: dict[str, Any] = {
            "bootstrap.servers": self._brokers.bootstrap,
            "client.id": process.name,
            "request.timeout.ms": "2000",
            "max.block.ms": "5000",
        }
        is_bounded = self._brokers.tier in (Tier.BOUNDED, Tier.BOUNDED_V1)
        timeout_ms = self._timeout_ms if is_bounded else 900_000
        return sink_options(self.sink_id, kafka=kafka, topic=TOPIC, txn_timeout_ms=timeout_ms)

    def _reach(self, process: Process, point: PausePoint) -> None:
        if not process.is_alive:
            raise Crash(point)
        if self.is_calm or self._random.random() >= self._mishap:
            return
        if self._random.random() < 0.5:
            self._history.note(f"{process} is killed at {point}")
            self.kill(process)
            raise Crash(point)
        if point not in IN_TRANSACTION:
            duration_s = self._random.choice((0.1, 3.0, 30.0, 30.0, 300.0))
            self._history.note(f"{process} sleeps at {point} for {duration_s} s")
            blocking.sleep(duration_s)
            self._history.note(f"{process} wakes")

    async def drive(self, process: Process) -> None:
        """Be a driver until all batches are acknowledged, or an error ends it, as in Spark."""
        sink = self._sink(process)
        try:
            while not self.is_over:
                await self._batch(process, sink, self.acknowledged)
        except EXPECTED as error:
            self._history.note(f"{process} fails: {type(error).__name__}")
        except Crash:
            return
        await blocking.run(sink.close)

    async def clean_up(self, process: Process) -> bool:
        """Plan once more, which completes leftovers. Return whether that was possible."""
        sink = self._sink(process)
        try:
            await blocking.run(lambda: sink.plan(SCHEMA, query_id=QUERY))
        except EXPECTED as error:
            self._history.note(f"{process} fails: {type(error).__name__}: {error}")
            return False
        finally:
            await blocking.run(sink.close)
        return True

    async def _batch(self, process: Process, sink: Sink, batch: int) -> None:
        plan = await blocking.run(lambda: sink.plan(SCHEMA, query_id=QUERY))
        self._history.note(f"{process} has planned batch {batch} as generation {plan.generation}")
        results = await asyncio.gather(*(self._partition(process, plan, batch, each) for each in range(_PARTITIONS)))
        known = [result for result in results if result is not None]
        if len(known) < _PARTITIONS:
            await blocking.run(lambda: sink.abort(known, query_id=QUERY, batch_id=batch))
            raise SinkError(f"batch {batch} failed")
        rows = [{"sink_id": self.sink_id, "value": value} for value in self.values(batch)]

        def insert(connection: sa.Connection, _: int) -> None:
            connection.execute(sa.insert(target), rows)

        await blocking.run(
            lambda: sink.commit(known, query_id=QUERY, batch_id=batch, offsets_digest="input", sql_fn=insert)
        )
        self._history.note(f"{process} has committed batch {batch}")
        self.acknowledged = max(self.acknowledged, batch + 1)

    async def _partition(self, driver: Process, plan: Plan, batch: int, partition: int) -> TaskResult | None:
        """Run a task, and others in its place if it fails or seems dead."""
        for _ in range(_TRIES):
            result: asyncio.Future[TaskResult | None] = self._loop.create_future()
            number = next(self._attempts)
            worker = Process(f"task {number}")
            self._history.note(f"{worker} begins partition {partition} of batch {batch}")
            self.began(worker)
            self._loop.begin(worker, self._task(worker, driver, plan, (batch, partition, number), result))
            done, _ = await asyncio.wait([result], timeout=_TASK_TIMEOUT_S)
            if done and result.result() is not None:
                return result.result()
        return None

    async def _task(
        self,
        worker: Process,
        driver: Process,
        plan: Plan,
        what: tuple[int, int, int],
        result: asyncio.Future[TaskResult | None],
    ) -> None:
        batch, partition, number = what
        part = self.values(batch)[partition::_PARTITIONS]
        identity = TaskIdentity(QUERY, batch, partition, number, "host")
        sink = self._sink(worker)
        written: TaskResult | None = None
        try:
            written = await blocking.run(lambda: sink.write(plan, identity, batches(part)))
        except EXPECTED as error:
            self._history.note(f"{worker} fails: {type(error).__name__}")
        except Crash:
            return
        await blocking.run(sink.close)
        self.ended(worker)
        self._loop.call_soon_in(driver, _report, result, written)

    # ---- invariants -----------------------------------------------------------------------------------------

    def at_rest(self) -> tuple[list[int], list[int]]:
        """Return the values that have to be there, and those of the table. Check that no attempt is left."""
        left = self.store.attempts(self.sink_id, LIVE)
        if left:
            self._history.wrong(f"attempts are left: {left}")
        return [value for batch in range(self.batch_count) for value in self.values(batch)], self.rows()


def _report(result: asyncio.Future[TaskResult | None], written: TaskResult | None) -> None:
    if not result.done():
        result.set_result(written)
