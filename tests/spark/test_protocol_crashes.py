"""Kill a batch at every pause point that it reaches, and again while it recovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from spark_sink.pause_points import PausePoint
from spark_sink.store.commit_store import CommitStore
from tests.spark.sink_model import World, new_store
from tests.spark.spark_model import Crashes, Killed, Query
from tests.spark.store_engines import engine_on
from tests.spark.topic_stores import AnyStore, memory_store, with_a_log_of_its_own

BATCHES = [[1, 2, 3, 4], [5]]
OF_REPAIR = {PausePoint.BEFORE_REPAIR, PausePoint.BEFORE_REPLACEMENT, PausePoint.AFTER_REPLACEMENT}
"""Reached only after Kafka has aborted a decided transaction."""
OF_LAKE = {PausePoint.AFTER_FILE, PausePoint.BEFORE_ADDITION, PausePoint.AFTER_ADDITION, PausePoint.BEFORE_FORGETTING}
"""Reached only with a Delta table (test_lake_crashes.py)."""
SECOND = range(1, 22)
"""The number of pause points between the two crashes: up to as many as a batch has."""


@pytest.fixture(scope="module", params=["sqlite", "postgres", "topic"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyStore]:
    if request.param == "topic":
        yield memory_store()
        return
    with engine_on(request.param, request, tmp_path_factory.mktemp("store")) as engine:
        yield new_store(engine)


def run(world: World, killed: Killed, *at: int) -> Crashes:
    """Run the query with these crashes, and check that every row is there exactly once."""
    crashes = Crashes(at)
    Query(world, BATCHES, crashes.reach, killed).run()
    world.assert_exactly_once([value for batch in BATCHES for value in batch])
    return crashes


def crash_at_each_point(new_world: Callable[[], World], killed: Killed) -> set[PausePoint]:
    """Run the query in a new world for each of its pause points, and crash there; return the points."""
    points = set()
    for number in range(1, run(new_world(), killed).count + 1):
        points.update(run(new_world(), killed, number).struck)
    return points


def crash_twice(new_world: Callable[[], World], killed: Killed) -> set[PausePoint]:
    """Crash at each of the pause points, and again at one of those after it; return the points."""
    points = set()
    for number in range(1, run(new_world(), killed).count + 1):
        for later in SECOND[number % 9 :: 9]:
            points.update(run(new_world(), killed, number, number + later).struck)
    return points


@pytest.mark.parametrize("killed", Killed, ids=lambda killed: killed.name.lower())
def test_a_crash_at_any_pause_point(store: AnyStore, killed: Killed) -> None:
    points = crash_at_each_point(lambda: World(with_a_log_of_its_own(store)), killed)
    assert points >= set(PausePoint) - OF_REPAIR - OF_LAKE - {PausePoint.AFTER_CONDEMNATION}


@pytest.mark.parametrize("killed", Killed, ids=lambda killed: killed.name.lower())
def test_a_second_crash_while_the_first_is_put_right(sqlite_store: CommitStore, killed: Killed) -> None:
    points = crash_twice(lambda: World(sqlite_store), killed)
    unreached = OF_REPAIR | OF_LAKE | ({PausePoint.AFTER_CONDEMNATION} if killed is Killed.APPLICATION else set())
    assert points == set(PausePoint) - unreached


@pytest.mark.parametrize("killed", Killed, ids=lambda killed: killed.name.lower())
def test_a_crash_at_any_pause_point_while_kafka_aborts_decided_transactions(
    sqlite_store: CommitStore, killed: Killed
) -> None:
    """Each open transaction is aborted after each decision, and again after each replacement of the first 5."""
    points = set()
    number = 0
    crashes = Crashes()
    while number <= crashes.count:
        number += 1
        world = World(sqlite_store)
        crashes = Crashes((number,))
        drops = iter(range(6))

        def reach(
            point: PausePoint, world: World = world, crashes: Crashes = crashes, drops: Iterator[int] = drops
        ) -> None:
            if point in (PausePoint.AFTER_DECISION, PausePoint.AFTER_REPLACEMENT) and next(drops, None) is not None:
                for transactional_id in world.broker.open_ids:
                    world.broker.drop(transactional_id)
            crashes.reach(point)

        Query(world, BATCHES, reach, killed).run(starts=20)
        world.assert_exactly_once([value for batch in BATCHES for value in batch])
        points.update(crashes.struck)
    assert points >= OF_REPAIR
