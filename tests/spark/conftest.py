"""Fixtures: a Spark session for all modules of a process, and the servers that a sink writes to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from spark_sink import register
from tests.spark.sinks import SinkWorld
from tests.support.databases import unique
from tests.support.spark_session import start_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Yield the session of this process. It is kept for the next module: starting it is half the time."""
    session = start_session()
    register(session)
    yield session
    for query in session.streams.active:
        query.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[Emulator]:
    """Yield one emulator for a module; topics and sinks have unique names."""
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def sqlite_world(broker: Emulator, tmp_path: Path) -> SinkWorld:
    """Return a sink, a topic of two partitions, and a commit store on SQLite."""
    return SinkWorld(broker, f"sqlite:///{tmp_path / 'store.db'}", tmp_path)


@pytest.fixture
def postgres_world(broker: Emulator, postgres_server: PostgresServer, tmp_path: Path) -> SinkWorld:
    """Return a sink, a topic of two partitions, and a commit store on Postgres in a schema of its own."""
    schema = unique("sink").replace("-", "_")
    with sa.create_engine(postgres_server.url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    url = postgres_server.url.update_query_dict({"options": f"-csearch_path={schema}"})
    return SinkWorld(broker, url.render_as_string(hide_password=False), tmp_path)
