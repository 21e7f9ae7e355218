"""`DualWriter` on brokers of every tier: the same calls, a repair where it is possible, and no silent loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.errors import PreparedTransactionLost
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import Crash, crash_at
from tests.producer.test_tiers import World, bounded, every_tier, world_of
from tests.support.kafka_ids import kafka_id_of

METADATA = sa.MetaData()
ROWS = sa.Table("rows", METADATA, sa.Column("value", sa.String(20), primary_key=True))


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world_of(request.param) as made:
        yield made


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"sqlite:///{tmp_path / 'db'}")
    METADATA.create_all(made)
    yield made
    made.dispose()


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


def write_anew(world: World, engine: sa.Engine, value: str) -> None:
    """Write by a new process."""
    with writer_of(world, engine) as writer:
        write(writer, value)


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


@every_tier
@pytest.mark.parametrize("at", list(PausePoint))
def test_a_crash_at_any_point_leaves_both_sides_agreed(world: World, engine: sa.Engine, at: PausePoint) -> None:
    write_anew(world, engine, "before")
    with suppress(Crash):  # some points are not reached
        die(world, engine, at, "crashed")
    with writer_of(world, engine) as writer:
        writer.recover()
        writer.recover()
        write(writer, "later")
    assert sorted(world.committed()) == rows(engine)
    assert {"before", "later"} <= set(rows(engine))


@bounded
def test_what_the_broker_aborts_is_published_again_by_the_write_itself(world: World, engine: sa.Engine) -> None:
    aborts = [PausePoint.AFTER_DATABASE_COMMIT]

    def pause(point: PausePoint) -> None:
        if point in aborts and "late" in rows(engine):
            aborts.clear()
            world.abort_by_timeout()

    with writer_of(world, engine, pause=pause) as writer:
        write(writer, "before")
        write(writer, "late")
        write(writer, "later")
    assert world.committed() == rows(engine) == ["before", "late", "later"]


@bounded
def test_a_loss_is_raised_by_the_write_itself_and_by_every_recovery(world: World, engine: sa.Engine) -> None:
    def pause(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT and "lost" in rows(engine):
            world.abort_by_timeout()
            forget_manifest(engine)

    with writer_of(world, engine, pause=pause) as writer:
        write(writer, "before")
        with pytest.raises(PreparedTransactionLost) as raised:
            write(writer, "lost")
        assert writer.state is SlotState.IN_DOUBT
        assert writer.in_doubt == PreparedTxnState(raised.value.prepared_state)
        for _ in range(2):
            with pytest.raises(PreparedTransactionLost):
                write(writer, "refused")
            with pytest.raises(PreparedTransactionLost):
                writer.recover()
    with writer_of(world, engine) as another, pytest.raises(PreparedTransactionLost):
        another.recover()
    assert rows(engine) == ["before", "lost"]
    world.ready(transactional_id=kafka_id_of(engine, "tid")).close()  # an operator has dealt with it
    write_anew(world, engine, "later")
    assert world.committed() == ["before", "later"]
