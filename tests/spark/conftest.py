"""Fixtures: a Spark session for all modules of a process, and the servers that a sink writes to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from spark_sink import register
from spark_sink.store.commit_store import CommitStore
from tests.spark.sink_model import new_store
from tests.spark.sinks import SinkWorld
from tests.spark.store_engines import sqlite_engine
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
def store(tmp_path: Path) -> Iterator[CommitStore]:
    """Yield a commit store of one test on SQLite, in `store.db`."""
    with sqlite_engine(tmp_path) as engine:
        yield new_store(engine)


@pytest.fixture(scope="module")
def sqlite_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommitStore]:
    """Yield one commit store on SQLite for a module; sinks have unique names."""
    with sqlite_engine(tmp_path_factory.mktemp("store")) as engine:
        yield new_store(engine)


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the name of each file that is flushed to its disk."""
    names: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


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
