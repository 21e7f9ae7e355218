"""`DualWriter` on brokers of every tier: the same calls, a repair where it is possible, and no silent loss."""

from __future__ import annotations

from contextlib import suppress

import pytest
import sqlalchemy as sa

from dualwrite.errors import PreparedTransactionLost
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from tests.crash.scenario import Crash
from tests.producer.tiers import World, bounded, every_tier
from tests.recipes.tiers import die, forget_manifest, rows, write, write_anew, writer_of
from tests.recipes.tiers import engine as engine
from tests.recipes.tiers import world as world
from tests.support.kafka_ids import kafka_id_of


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
