"""The dual write on real brokers of each tier: the process is killed on either side of the database's commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import event_texts, write_events
from tests.support.databases import PostgresDatabase, event_bodies
from tests.support.kafka_ids import kafka_id_of

from . import worker
from .clusters import Cluster, killed
from .conftest import NewName
from .reading import read_committed


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = PostgresDatabase(request.getfixturevalue("postgres_server"))
    yield made
    made.close()


@pytest.fixture
def settings(cluster: Cluster, new_name: NewName) -> dict[str, Any]:
    return cluster.settings_of_writer(new_name("writer"))


def url_of(database: PostgresDatabase) -> str:
    return database.url.render_as_string(hide_password=False)


def published(cluster: Cluster, topic: str) -> list[str]:
    return [value.decode() for value in read_committed({"bootstrap.servers": cluster.bootstrap_servers}, topic)]


@pytest.mark.parametrize(
    ("point", "survives"), [(PausePoint.BEFORE_DATABASE_COMMIT, False), (PausePoint.AFTER_DATABASE_COMMIT, True)]
)
def test_killed_around_the_decision(
    point: PausePoint,
    survives: bool,
    cluster: Cluster,
    database: PostgresDatabase,
    topic: str,
    settings: dict[str, Any],
) -> None:
    killed(worker.dual_write, point, url_of(database), settings, topic)
    cluster.wait_for_state(kafka_id_of(database.engine, settings["transactional_id"]), "Ongoing")
    expected = event_texts("1") if survives else []
    assert event_bodies(database) == expected
    with DualWriter(database.engine, **settings) as successor:
        successor.recover()
        assert published(cluster, topic) == expected
        assert write_events(successor, topic, number=2).error is None
    cluster.wait_until_settled(kafka_id_of(database.engine, settings["transactional_id"]))
    assert published(cluster, topic) == event_bodies(database) == [*expected, *event_texts("2")]
