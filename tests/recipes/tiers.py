"""Dual writes on a broker of each tier, and their rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import crash_at
from tests.producer.tiers import World, world_of

METADATA = sa.MetaData()

ROWS = sa.Table("rows", METADATA, sa.Column("value", sa.String(20), primary_key=True))


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world_of(request.param) as made:
        yield made


@contextmanager
def writer_of(world: World, engine: sa.Engine, **settings: Any) -> Iterator[DualWriter]:
    settings = {"max_block_ms": 60_000, "retry_backoff_ms": 5} | settings
    with DualWriter(
        engine, bootstrap_servers=world.emulator.bootstrap_servers, transactional_id="tid", **settings
    ) as writer:
        yield writer


def write(writer: DualWriter, value: str) -> None:
    with writer.transaction() as tx:
        tx.connection.execute(ROWS.insert().values(value=value))
        tx.send("orders", value, partition=0)


def die(world: World, engine: sa.Engine, at: PausePoint, value: str) -> None:
    """Write by a process that dies at its first time at a point."""
    with writer_of(world, engine, pause=crash_at(at)) as writer:
        write(writer, value)


def forget_manifest(engine: sa.Engine) -> None:
    """Leave the row as a version without manifests does: if Kafka aborts, there is nothing to publish again."""
    with engine.begin() as connection:
        connection.execute(kafka_transaction_state.update().values(manifest=None))


def rows(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.scalars(sa.select(ROWS.c.value)))
