"""Random histories of two drivers on one sink: every row is there exactly once, wherever a process dies or stalls.

Every process may stall at a pause point, be killed there, or continue. Brokers become unreachable and reachable again,
they abort transactions that are open, prepared and decided ones too, and a losing attempt of any age resumes. In the
calm phase that follows, everything must complete.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from random import Random
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dualwrite.errors import KafkaError
from spark_sink.errors import BatchLostError, CheckpointMismatchError, SinkError, SinkFencedError
from spark_sink.handoff import Plan, TaskResult
from tests.spark.sink_model import Stalling, World, new_store, partitioned
from tests.spark.spark_model import Query
from tests.spark.store_engines import engine_on
from tests.spark.topic_stores import AnyStore, memory_store, with_a_log_of_its_own

BATCHES = [[2 * n, 2 * n + 1] for n in range(5)]
NEVER = 999
ACTIONS = ["next"] * 10 + ["wake up"] * 3 + ["write as well"] * 2 + ["abort", "finish", "restart", "drop", "drop"]


class Fate(Enum):
    """The fate of a process that begins or resumes."""

    RUNS = "to its end"
    SLEEPS = "at a pause point"
    DIES = "there"


class Driver:
    """A driver of the query, with the state of its current batch."""

    def __init__(self, batch_id: int, partitions: int) -> None:
        self.batch_id = batch_id
        self.parts = partitioned(BATCHES[batch_id], partitions)
        self.plan: Plan | None = None
        self.results: dict[int, TaskResult] = {}

    @property
    def next_partition(self) -> int | None:
        """Return the next partition; None if all are written."""
        return next((number for number in range(len(self.parts)) if number not in self.results), None)


class Sleeper(NamedTuple):
    """A stalled process, with the driver of its task, if it is a task."""

    stalling: Stalling
    driver: Driver | None
    partition: int | None


class Histories(RuleBasedStateMachine):
    """The histories. `committed` is Spark's commit log, which both drivers share: they have one checkpoint."""

    store: ClassVar[AnyStore]

    def __init__(self) -> None:
        super().__init__()
        self.world = World(with_a_log_of_its_own(self.store))
        self.committed = 0
        self.drivers: list[Driver | None] = [None, None]
        self.sleepers: list[Sleeper] = []

    @initialize(random=st.randoms(use_true_random=True))
    def draw_from(self, random: Random) -> None:
        """Draw a fate with weights: Hypothesis prefers simple values, and then no process stalls long enough."""
        self.random = random

    @rule()
    def something_happens(self) -> None:
        action = self.random.choice(ACTIONS)
        number = int(self.random.random() < 0.15)
        partitions = self.random.randint(1, 2)
        points = self.random.randint(1, 9)
        fate = self.random.choice([Fate.RUNS, Fate.RUNS, Fate.SLEEPS, Fate.DIES])
        stop, killed = (NEVER if fate is Fate.RUNS else points), fate is Fate.DIES
        self.world.broker.down = self.random.random() < 0.1
        if action == "next":
            self._next_step(number, partitions, stop, killed)
        elif action == "wake up" and self.sleepers:
            self._go_on(self.sleepers.pop(points % len(self.sleepers)), stop, killed)
        elif action == "write as well":
            self._write_as_well(number, stop, killed)
        elif action == "abort":
            self._abort(number, stop, killed)
        elif action == "finish":
            self._run(lambda me: self.world.process(me.reach).sink.finish(), None, None, stop, killed)
        elif action == "drop":
            self._drop(points)
        elif action == "restart":
            self.drivers[number] = None
        self.world.broker.down = False

    def _next_step(self, number: int, partitions: int, stop: int, killed: bool) -> None:
        """Take the next step of a driver: PLAN, then each WRITE, then COMMIT."""
        driver = self.drivers[number]
        if driver is None:
            self._plan(number, partitions, stop, killed)
        elif (partition := driver.next_partition) is not None:
            self._write(driver, partition, stop, killed)
        else:
            self._commit(number, driver, stop, killed)

    def _write_as_well(self, number: int, stop: int, killed: bool) -> None:
        """Run a second attempt of a task, which may still win, or stall until it has long lost."""
        driver = self.drivers[number]
        if driver is not None:
            self._write(driver, 0, stop, killed)

    def _abort(self, number: int, stop: int, killed: bool) -> None:
        driver, self.drivers[number] = self.drivers[number], None
        if driver is not None:
            results, batch_id = list(driver.results.values()), driver.batch_id
            self._run(lambda me: self.world.process(me.reach).abort(results, batch_id), driver, None, stop, killed)

    def _drop(self, number: int) -> None:
        """Abort an open transaction, as a broker does after its timeout, and an operator by force."""
        open_ids = self.world.broker.open_ids
        if open_ids and not self.world.broker.down:
            self.world.broker.drop(open_ids[number % len(open_ids)])

    def _plan(self, number: int, partitions: int, stop: int, killed: bool) -> None:
        if self.committed == len(BATCHES):
            return
        driver = self.drivers[number] = Driver(self.committed, partitions)

        def call(me: Stalling) -> None:
            driver.plan = self.world.process(me.reach).plan()

        self._run(call, driver, None, stop, killed)
        if driver.plan is None:
            self.drivers[number] = None  # that one sleeps, is dead, or has failed; start anew

    def _write(self, driver: Driver, partition: int, stop: int, killed: bool) -> None:
        def call(me: Stalling) -> TaskResult:
            assert driver.plan is not None
            return self.world.process(me.reach).write(driver.plan, driver.batch_id, partition, driver.parts[partition])

        self._run(call, driver, partition, stop, killed)

    def _commit(self, number: int, driver: Driver, stop: int, killed: bool) -> None:
        results, batch_id = list(driver.results.values()), driver.batch_id

        def call(me: Stalling) -> None:
            self.world.process(me.reach).commit(results, batch_id, BATCHES[batch_id])
            self.committed = max(self.committed, batch_id + 1)

        self.drivers[number] = None
        self._run(call, driver, None, stop, killed)

    def _run(
        self,
        call: Callable[[Stalling], object],
        driver: Driver | None,
        partition: int | None,
        stop: int,
        killed: bool,
    ) -> None:
        self._go_on(Sleeper(Stalling(call), driver, partition), stop, killed)

    def _go_on(self, sleeper: Sleeper, stop: int, killed: bool) -> None:
        stalling = sleeper.stalling.until(stop)
        if not stalling.is_over:
            if killed:
                stalling.kill()
            else:
                self.sleepers.append(sleeper)
        elif stalling.error is not None:
            assert isinstance(stalling.error, SinkError | KafkaError), stalling.error
            assert not isinstance(stalling.error, BatchLostError | CheckpointMismatchError), stalling.error
            if isinstance(stalling.error, SinkFencedError):
                self.drivers = [None if driver is sleeper.driver else driver for driver in self.drivers]
        elif isinstance(stalling.result, TaskResult) and sleeper.driver is not None and sleeper.partition is not None:
            sleeper.driver.results.setdefault(sleeper.partition, stalling.result)  # the first that ends well wins

    # ---- always, and in the end -----------------------------------------------------------------------------

    @invariant()
    def nothing_is_there_twice(self) -> None:
        assert len(set(self.world.broker.committed)) == len(self.world.broker.committed)
        assert set(self.world.broker.committed) <= set(self.world.rows)

    def teardown(self) -> None:
        self.world.broker.down = False
        for sleeper in self.sleepers:
            self._go_on(sleeper, NEVER, killed=False)
        Query(self.world, BATCHES, committed=self.committed).run()
        self.world.process().plan()
        self.world.assert_exactly_once([value for batch in BATCHES for value in batch])


@pytest.mark.parametrize(("name", "examples"), [("sqlite", 30), ("postgres", 10), ("topic", 30)])
def test_random_histories(
    name: str, examples: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as until_the_end:
        store = (
            memory_store()
            if name == "topic"
            else new_store(until_the_end.enter_context(engine_on(name, request, tmp_path)))
        )
        monkeypatch.setattr(Histories, "store", store, raising=False)
        run_state_machine_as_test(
            Histories,
            settings=settings(
                max_examples=examples,
                stateful_step_count=40,
                deadline=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
