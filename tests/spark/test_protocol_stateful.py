"""Random histories of two drivers on one sink: whoever is killed or sleeps wherever, every row is there exactly once.

Every process may stall at a pause point, be killed there, or go on; brokers go away and come back; a loser of any age
wakes up. Then comes a calm phase, in which everything must come right.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dualwrite.errors import KafkaError
from spark_sink.commit_store import CommitStore
from spark_sink.errors import BatchLostError, CheckpointMismatchError, SinkError
from spark_sink.handoff import Plan, TaskResult
from tests.spark.sink_model import Stalling, World, new_store, partitioned
from tests.spark.spark_model import Query
from tests.spark.store_engines import engine_on

BATCHES = [[1, 2, 3], [4, 5], [], [6, 7]]
NEVER = 999
POINTS = st.one_of(st.integers(1, 9), st.just(NEVER))


class Driver:
    """A driver of the query, as far as its present batch has come."""

    def __init__(self, batch_id: int, partitions: int) -> None:
        self.batch_id = batch_id
        self.parts = partitioned(BATCHES[batch_id], partitions)
        self.plan: Plan | None = None
        self.results: dict[int, TaskResult] = {}

    @property
    def is_ready(self) -> bool:
        return len(self.results) == len(self.parts)


class Histories(RuleBasedStateMachine):
    """`committed` is Spark's commit log, which both drivers share: they were started on one checkpoint."""

    store: ClassVar[CommitStore]

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.store)
        self.committed = 0
        self.drivers: list[Driver | None] = [None, None]
        self.sleepers: list[tuple[Stalling, Driver, int | None]] = []

    # ---- steps of a driver ----------------------------------------------------------------------------------

    @rule(number=st.integers(0, 1), partitions=st.integers(1, 3), stop=POINTS, killed=st.booleans())
    def plan(self, number: int, partitions: int, stop: int, killed: bool) -> None:
        """Start a driver anew, or let it go on to the next batch."""
        if self.committed == len(BATCHES):
            return
        driver = self.drivers[number] = Driver(self.committed, partitions)

        def call(me: Stalling) -> None:
            driver.plan = self.world.process(me.reach).plan()

        self._run(call, driver, None, stop, killed)

    @rule(number=st.integers(0, 1), part=st.integers(0, 2), stop=POINTS, killed=st.booleans())
    def write(self, number: int, part: int, stop: int, killed: bool) -> None:
        """A task, or a second attempt of one."""
        driver = self.drivers[number]
        if driver is None or driver.plan is None:
            return
        partition = part % len(driver.parts)

        def call(me: Stalling) -> TaskResult:
            assert driver.plan is not None
            return self.world.process(me.reach).write(driver.plan, driver.batch_id, partition, driver.parts[partition])

        self._run(call, driver, partition, stop, killed)

    @rule(number=st.integers(0, 1), stop=POINTS, killed=st.booleans())
    def commit(self, number: int, stop: int, killed: bool) -> None:
        driver = self.drivers[number]
        if driver is None or driver.plan is None or not driver.is_ready:
            return
        results, batch_id = list(driver.results.values()), driver.batch_id

        def call(me: Stalling) -> None:
            self.world.process(me.reach).commit(results, batch_id, BATCHES[batch_id])
            self.committed = max(self.committed, batch_id + 1)

        self.drivers[number] = None
        self._run(call, driver, None, stop, killed)

    @rule(number=st.integers(0, 1), stop=POINTS, killed=st.booleans())
    def abort(self, number: int, stop: int, killed: bool) -> None:
        driver = self.drivers[number]
        if driver is None:
            return
        self.drivers[number] = None
        results, batch_id = list(driver.results.values()), driver.batch_id
        self._run(lambda me: self.world.process(me.reach).abort(results, batch_id), driver, None, stop, killed)

    # ---- and of others --------------------------------------------------------------------------------------

    @rule(stop=POINTS, killed=st.booleans())
    def finish(self, stop: int, killed: bool) -> None:
        self._run(lambda me: self.world.process(me.reach).sink.finish(), None, None, stop, killed)

    @precondition(lambda self: self.sleepers)
    @rule(which=st.integers(0, 99), stop=POINTS, killed=st.booleans())
    def wake_up(self, which: int, stop: int, killed: bool) -> None:
        stalling, driver, partition = self.sleepers.pop(which % len(self.sleepers))
        self._go_on(stalling, driver, partition, stop, killed)

    @rule()
    def brokers_go_away_or_come_back(self) -> None:
        self.world.broker.down = not self.world.broker.down

    # ---- how they run ---------------------------------------------------------------------------------------

    def _run(self, call, driver, partition, stop, killed):  # type: ignore[no-untyped-def]
        self._go_on(Stalling(call), driver, partition, stop, killed)

    def _go_on(self, stalling, driver, partition, stop, killed):  # type: ignore[no-untyped-def]
        stalling.until(stop)
        if not stalling.is_over:
            if killed:
                stalling.kill()
            else:
                self.sleepers.append((stalling, driver, partition))
        elif stalling.error is not None:
            assert isinstance(stalling.error, SinkError | KafkaError), stalling.error
            assert not isinstance(stalling.error, BatchLostError | CheckpointMismatchError), stalling.error
        elif isinstance(stalling.result, TaskResult):
            driver.results.setdefault(partition, stalling.result)  # the first attempt that ends well wins

    # ---- what is always true, and in the end ----------------------------------------------------------------

    @invariant()
    def nothing_is_there_twice(self) -> None:
        assert len(set(self.world.broker.committed)) == len(self.world.broker.committed)
        assert set(self.world.broker.committed) <= set(self.world.rows)

    def teardown(self) -> None:
        self.world.broker.down = False
        for stalling, driver, partition in self.sleepers:
            self._go_on(stalling, driver, partition, NEVER, False)
        Query(self.world, BATCHES, committed=self.committed).run()
        self.world.process().plan()
        self.world.assert_exactly_once([value for batch in BATCHES for value in batch])


@pytest.mark.parametrize(("name", "examples"), [("sqlite", 60), ("postgres", 25)])
def test_random_histories(
    name: str, examples: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_on(name, request, tmp_path) as engine:
        monkeypatch.setattr(Histories, "store", new_store(engine), raising=False)
        run_state_machine_as_test(
            Histories,
            settings=settings(
                max_examples=examples,
                stateful_step_count=25,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
