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
from tests.spark.spark_model import Killed, Query
from tests.spark.store_engines import engine_on
from tests.spark.test_protocol_crashes import BATCHES, OF_LAKE, OF_REPAIR, crash_at_each_point, crash_twice

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommitStore]:
    with engine_on(request.param, request, tmp_path_factory.mktemp("store")) as engine:
        yield new_store(engine)


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], LakeTable]:
    return partial(KINDS[request.param], tmp_path)


@pytest.mark.parametrize("killed", Killed, ids=lambda killed: killed.name.lower())
def test_a_crash_at_any_pause_point(store: CommitStore, table: Callable[[], LakeTable], killed: Killed) -> None:
    points = crash_at_each_point(lambda: LakeWorld(store, table()), killed)
    assert points >= set(PausePoint) - OF_REPAIR - {PausePoint.AFTER_CONDEMNATION}


@pytest.mark.parametrize("killed", Killed, ids=lambda killed: killed.name.lower())
def test_a_second_crash_while_the_first_is_put_right(
    sqlite_store: CommitStore, table: Callable[[], LakeTable], killed: Killed
) -> None:
    assert crash_twice(lambda: LakeWorld(sqlite_store, table()), killed) >= OF_LAKE


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
