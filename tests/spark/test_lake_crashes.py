"""Kill a batch with a Delta or Iceberg table at every pause point that it reaches, and again while it recovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dualwrite.errors import KafkaError
from spark_sink.errors import SinkError
from spark_sink.pause_points import PausePoint
from spark_sink.store.commit_store import CommitStore
from tests.spark.lake_model import LakeWorld
from tests.spark.lake_tables import KINDS, LakeTable
from tests.spark.sink_model import Stalling, new_store, run_batch
from tests.spark.spark_model import Crashes, Killed, Query
from tests.spark.store_engines import engine_on, sqlite_engine
from tests.spark.test_protocol_crashes import BATCHES, OF_LAKE, OF_REPAIR, SECOND

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommitStore]:
    with engine_on(request.param, request, tmp_path_factory.mktemp("store")) as engine:
        yield new_store(engine)


@pytest.fixture(scope="module")
def sqlite_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommitStore]:
    with sqlite_engine(tmp_path_factory.mktemp("store")) as engine:
        yield new_store(engine)


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], LakeTable]:
    return partial(KINDS[request.param], tmp_path)


def run(store: CommitStore, table: Callable[[], LakeTable], killed: Killed, *at: int) -> Crashes:
    """Run the query with these crashes, and check that every row is there exactly once."""
    world = LakeWorld(store, table())
    crashes = Crashes(at)
    Query(world, BATCHES, crashes.reach, killed).run()
    world.assert_exactly_once([value for batch in BATCHES for value in batch])
    return crashes


@pytest.mark.parametrize("killed", Killed, ids=lambda killed: killed.name.lower())
def test_a_crash_at_any_pause_point(store: CommitStore, table: Callable[[], LakeTable], killed: Killed) -> None:
    points = set()
    for number in range(1, run(store, table, killed).count + 1):
        points.update(run(store, table, killed, number).struck)
    assert points >= set(PausePoint) - OF_REPAIR - {PausePoint.AFTER_CONDEMNATION}


@pytest.mark.parametrize("killed", Killed, ids=lambda killed: killed.name.lower())
def test_a_second_crash_while_the_first_is_put_right(
    sqlite_store: CommitStore, table: Callable[[], LakeTable], killed: Killed
) -> None:
    points = set()
    for number in range(1, run(sqlite_store, table, killed).count + 1):
        for later in SECOND[number % 9 :: 9]:
            points.update(run(sqlite_store, table, killed, number, number + later).struck)
    assert points >= OF_LAKE


def _write_first(world: LakeWorld, stalling: Stalling) -> None:
    run_batch(world.process(stalling.reach), 0, BATCHES[0])


def test_a_driver_that_sleeps_at_any_point_beside_its_successor(
    sqlite_store: CommitStore, table: Callable[[], LakeTable]
) -> None:
    points: list[PausePoint | None] = []
    while True:
        world = LakeWorld(sqlite_store, table())
        asleep = Stalling(partial(_write_first, world)).until(len(points) + 1)
        if asleep.is_over:
            break
        points.append(asleep.point)
        Query(world, BATCHES).run()
        asleep.go_on()
        assert asleep.error is None or isinstance(asleep.error, (SinkError, KafkaError)), asleep.error
        Query(world, [*BATCHES, [6]], committed=len(BATCHES)).run()
        world.assert_exactly_once([value for batch in [*BATCHES, [6]] for value in batch])
    assert set(points) >= OF_LAKE
