"""`RecoveryService` on brokers of every tier, and the possible losses of the bounded ones."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.errors import PreparedTransactionLost
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.recovery.service import Action, RecoveryReport, RecoveryService
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from tests.crash.scenario import Crash
from tests.producer.tiers import BOUNDED, World, bounded, every_tier
from tests.recipes.tiers import die, engine, forget_manifest, rows, world, write, write_anew, writer_of
from tests.support.conditions import until
from tests.support.kafka_ids import kafka_id_of

__all__ = ["engine", "world"]  # fixtures


def recover(world: World, engine: sa.Engine, **settings: Any) -> RecoveryReport:
    given: dict[str, Any] = {"transactional_ids": ["tid"], "min_age_ms": 0} | settings
    with RecoveryService(engine, bootstrap_servers=world.emulator.bootstrap_servers, **given) as recovery:
        plan = recovery.plan()
        done = recovery.recover()
    assert [found.action for found in plan.found] == [found.action for found in done.found]
    return done


@every_tier
@pytest.mark.parametrize("at", list(PausePoint))
def test_a_crash_at_any_point(world: World, engine: sa.Engine, at: PausePoint) -> None:
    write_anew(world, engine, "before")
    with suppress(Crash):  # some points are not reached
        die(world, engine, at, "crashed")
    assert not recover(world, engine).left
    assert recover(world, engine).found == ()
    assert sorted(world.committed()) == rows(engine)
    write_anew(world, engine, "later")
    assert sorted(world.committed()) == rows(engine)


@bounded
def test_a_loss_between_the_looks_at_rows_and_at_kafka_is_told(
    world: World, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the earlier row, the abort would be an old one."""

    def pause(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT and "lost" in rows(engine):
            world.abort_by_timeout()
            forget_manifest(engine)

    with writer_of(world, engine, pause=pause) as writer:
        write(writer, "before")
        described = RecoveryService._described

        def lose_and_describe(service: RecoveryService, ids: list[str], unseen: list[str]) -> Any:
            with pytest.raises(PreparedTransactionLost):
                write(writer, "lost")
            return described(service, ids, unseen)

        monkeypatch.setattr(RecoveryService, "_described", lose_and_describe)
        settings: dict[str, Any] = {"transactional_ids": ["tid"], "min_age_ms": 0}
        with RecoveryService(engine, bootstrap_servers=world.emulator.bootstrap_servers, **settings) as recovery:
            (found,) = recovery.recover().found
    assert found.action is Action.LOST


@every_tier
@pytest.mark.parametrize("way", ["timeout", "operator", "operator, long ago"])
def test_what_was_aborted_is_published_again(world: World, engine: sa.Engine, way: str) -> None:
    if way == "timeout" and world.tier not in BOUNDED:
        return
    kafka_id = kafka_id_of(engine, "tid")

    write_anew(world, engine, "before")
    with pytest.raises(Crash):
        die(world, engine, PausePoint.AFTER_DATABASE_COMMIT, "decided")
    if way == "timeout":
        world.abort_by_timeout()
    else:
        with TransactionAdmin(bootstrap_servers=world.emulator.bootstrap_servers) as admin:
            admin.force_terminate_transaction(kafka_id)
    if way == "operator, long ago":
        world.settle()
        world.emulator.set_config({"retention.ms": "-1"}, topic="orders")
        world.emulator.advance_clock(8 * 24 * 3_600_000)
        until(lambda: not world.emulator.transactions())
    report = recover(world, engine)
    (found,) = report.found
    assert (found.action, found.changed, found.is_left, report.is_clean) == (Action.REPAIR, True, False, True)
    assert recover(world, engine).found == ()
    write_anew(world, engine, "later")
    assert world.committed() == rows(engine) == ["before", "decided", "later"]


@bounded
def test_a_loss_is_told_until_it_is_acknowledged(world: World, engine: sa.Engine) -> None:
    def pause(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT:
            world.abort_by_timeout()
            forget_manifest(engine)

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
    write_anew(world, engine, "later")
    assert world.committed() == ["later"]
    assert rows(engine) == ["later", "lost"]


@every_tier
def test_an_operators_abort_is_told_until_it_is_acknowledged(world: World, engine: sa.Engine) -> None:
    kafka_id = kafka_id_of(engine, "tid")
    with TransactionAdmin(bootstrap_servers=world.emulator.bootstrap_servers) as admin:

        def pause(point: PausePoint) -> None:
            if point is PausePoint.AFTER_DATABASE_COMMIT:
                admin.force_terminate_transaction(kafka_id)
                forget_manifest(engine)

        with writer_of(world, engine, pause=pause) as writer, pytest.raises(PreparedTransactionLost):
            write(writer, "lost")
        for _ in range(2):
            (found,) = recover(world, engine).found
            assert (found.action, found.changed, found.is_left) == (Action.LOST, False, True)
            with writer_of(world, engine) as writer, pytest.raises(PreparedTransactionLost):
                write(writer, "refused")
            admin.force_terminate_transaction(kafka_id)  # has no transaction to end, and leaves the evidence
    (acknowledged,) = recover(world, engine, acknowledge_lost=["tid"]).found
    assert (acknowledged.action, acknowledged.changed) == (Action.ACKNOWLEDGE, True)
    assert recover(world, engine).found == ()
    write_anew(world, engine, "later")
    assert world.committed() == ["later"]
    assert rows(engine) == ["later", "lost"]


@every_tier
def test_what_an_operator_aborted_before_it_was_decided_is_no_loss(world: World, engine: sa.Engine) -> None:
    write_anew(world, engine, "before")
    with pytest.raises(Crash):
        die(world, engine, PausePoint.AFTER_PREPARE, "undecided")
    with TransactionAdmin(bootstrap_servers=world.emulator.bootstrap_servers) as admin:
        admin.force_terminate_transaction(kafka_id_of(engine, "tid"))
    assert recover(world, engine).is_clean
    write_anew(world, engine, "later")
    assert sorted(world.committed()) == rows(engine) == ["before", "later"]


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
