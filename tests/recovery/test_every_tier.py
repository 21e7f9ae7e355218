"""`RecoveryService` on brokers of every tier, and what the bounded ones may lose."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.errors import PreparedTransactionLost
from dualwrite.recipes.pause_points import PausePoint
from dualwrite.recipes.recovery import Action, RecoveryReport, RecoveryService
from dualwrite.recipes.state_table import kafka_transaction_state
from tests.producer.test_tiers import World, bounded, every_tier
from tests.recipes.test_tiers import Crash, engine, rows, world, write, writer_of
from tests.support.kafka_ids import kafka_id_of

__all__ = ["engine", "world"]  # fixtures


def recover(world: World, engine: sa.Engine, **settings: Any) -> RecoveryReport:
    settings = {"transactional_ids": ["tid"], "min_age_ms": 0} | settings
    with RecoveryService(engine, bootstrap_servers=world.emulator.bootstrap_servers, **settings) as recovery:
        plan = recovery.plan()
        done = recovery.recover()
    assert [found.action for found in plan.found] == [found.action for found in done.found]
    return done


@every_tier
@pytest.mark.parametrize("at", list(PausePoint))
def test_a_crash_at_any_point(world: World, engine: sa.Engine, at: PausePoint) -> None:
    def pause(point: PausePoint) -> None:
        if point is at:
            raise Crash

    with writer_of(world, engine) as writer:
        write(writer, "before")
    with writer_of(world, engine, pause=pause) as crashing:
        try:
            write(crashing, "crashed")
        except Crash:
            pass
    assert not recover(world, engine).left
    assert recover(world, engine).found == ()
    assert sorted(world.committed()) == rows(engine)
    with writer_of(world, engine) as writer:
        write(writer, "later")
    assert sorted(world.committed()) == rows(engine)


@bounded
def test_a_loss_is_told_until_it_is_acknowledged(world: World, engine: sa.Engine) -> None:
    def pause(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT:
            world.abort_by_timeout()

    with writer_of(world, engine, pause=pause) as writer, pytest.raises(PreparedTransactionLost) as raised:
        write(writer, "lost")
    for _ in range(2):
        report = recover(world, engine)
        (found,) = report.found
        assert (found.action, found.changed, report.is_clean) == (Action.LOST, False, False)
        assert found.row == raised.value.prepared_state
        assert found.state == "CompleteAbort"
    (acknowledged,) = recover(world, engine, acknowledge_lost=["tid"]).found
    assert (acknowledged.action, acknowledged.changed) == (Action.ACKNOWLEDGE, True)
    assert recover(world, engine).found == ()
    with writer_of(world, engine) as writer:
        write(writer, "later")
    assert world.committed() == ["later"]
    assert rows(engine) == ["later", "lost"]


@every_tier
def test_a_row_that_kafka_has_never_heard_of_is_not_acknowledged_away(world: World, engine: sa.Engine) -> None:
    """It may be the wrong cluster, and on the right one the row still decides."""
    kafka_id = kafka_id_of(engine, "tid")
    state = world.prepared(transactional_id=kafka_id)
    later = f"{state.producer_id}:{state.producer_epoch + 5}"
    with engine.begin() as connection:
        values = {"transactional_id": "tid", "prepared_transaction_state": later}
        connection.execute(kafka_transaction_state.insert().values(values))
    (found,) = recover(world, engine, acknowledge_lost=["tid"]).found
    assert (found.action, found.changed, found.is_left) == (Action.FORGOTTEN, False, True)
    assert world.described(kafka_id) == ("Ongoing", state.producer_id, state.producer_epoch)
