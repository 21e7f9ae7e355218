"""A batch is killed at every pause point that it meets, and once more while it is put right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from spark_sink.pause_points import PausePoint
from tests.spark.sink_model import World
from tests.spark.spark_model import Crashes, Killed, Query
from tests.spark.store_engines import engine_on, sqlite_engine
from tests.support.databases import unique

BATCHES = [[1, 2, 3, 4], [5]]
SECOND = range(1, 22)
"""How many pause points after the first crash the second one comes: as many as a batch has."""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    with engine_on(request.param, request, tmp_path_factory.mktemp("store")) as engine:
        yield engine


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    with sqlite_engine(tmp_path_factory.mktemp("store")) as engine:
        yield engine


def run(engine: sa.Engine, killed: Killed, *at: int) -> Crashes:
    """The query with these crashes; exactly once, whatever they are."""
    world = World(engine, unique("sink").replace("-", "_"))
    crashes = Crashes(at)
    Query(world, BATCHES, crashes, killed).run()
    world.assert_exactly_once([value for batch in BATCHES for value in batch])
    return crashes


@pytest.mark.parametrize("killed", Killed, ids=lambda killed: killed.name.lower())
def test_a_crash_at_any_pause_point(engine: sa.Engine, killed: Killed) -> None:
    points = set()
    for number in range(1, run(engine, killed).count + 1):
        points.update(run(engine, killed, number).struck)
    assert points >= set(PausePoint) - {PausePoint.AFTER_CONDEMNATION}


@pytest.mark.parametrize("killed", Killed, ids=lambda killed: killed.name.lower())
def test_a_second_crash_while_the_first_is_put_right(sqlite: sa.Engine, killed: Killed) -> None:
    points = set()
    for number in range(1, run(sqlite, killed).count + 1):
        for later in SECOND[number % 8 :: 8]:
            points.update(run(sqlite, killed, number, number + later).struck)
    assert points == set(PausePoint) - ({PausePoint.AFTER_CONDEMNATION} if killed is Killed.APPLICATION else set())
