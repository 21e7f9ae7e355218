"""`confirm="database"`: a dual write returns when the database has committed, and Kafka's commit is heard of later.

Whatever becomes of that commit meanwhile, both sides agree in the end, and no other dual write goes first under the id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.faults import CloseBefore, DropReply, Fault, Hold
from dualwrite.errors import ConfigError, FencedError, PreparedTransactionLost, RetriableError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.kafka_participant import BlockingKafkaParticipant
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.psycopg.writer import PsycopgDualWriterPool
from dualwrite.testing.postgres import PostgresServer
from tests.crash.matrix import FaultKind, strike
from tests.crash.psycopg_scenario import (
    INSERT,
    AwaitedPsycopgScenario,
    PsycopgScenario,
    awaited_psycopg_scenario,
    conninfo_of,
)
from tests.crash.scenario import AtPoint, event_texts
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase, unique
from tests.support.topics import read_topic

POINTS = [PausePoint.AFTER_PREPARE, PausePoint.BEFORE_DATABASE_COMMIT, PausePoint.AFTER_DATABASE_COMMIT]


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase(postgres_server)
    yield database
    database.close()


@pytest.fixture
def scenario(postgres: PostgresDatabase, emulator: Emulator) -> PsycopgScenario:
    return PsycopgScenario(postgres, emulator)


@pytest.fixture
def awaited(postgres: PostgresDatabase, emulator: Emulator) -> Iterator[AwaitedPsycopgScenario]:
    with awaited_psycopg_scenario(postgres, emulator) as made:
        yield made


def written_once(scenario: PsycopgScenario, **settings: Any) -> Any:
    """A writer whose first dual write is confirmed."""
    writer = scenario.writer(confirm="database", **settings)
    assert scenario.write(writer, 0).error is None
    blocking.run(writer.coordinator.confirm())
    assert writer.state is SlotState.READY
    return writer


def until_kafka_has_committed(scenario: PsycopgScenario | AwaitedPsycopgScenario) -> None:
    """Else a fault that is meant for the next commit hits the one that is on its way still."""
    until(lambda: [each.state for each in scenario.emulator.transactions()] == ["CompleteCommit"])


def readable(scenario: PsycopgScenario | AwaitedPsycopgScenario) -> list[str]:
    return [value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]


@pytest.mark.parametrize("kind", ["scenario", "awaited"])
def test_it_returns_before_kafka_has_committed(kind: str, request: pytest.FixtureRequest) -> None:
    scenario = request.getfixturevalue(kind)
    writer = scenario.writer(confirm="database")
    assert scenario.write(writer, 0).error is None
    until_kafka_has_committed(scenario)
    held = scenario.emulator.faults.add(Fault(api="EndTxn", action=Hold()))

    seen = scenario.write(writer, 1)

    assert seen.outcome is Outcome.COMMITTED
    assert writer.state is SlotState.CONFIRMING
    assert writer.in_doubt == scenario.row()
    held.wait_held()
    held.release()
    assert scenario.write(writer, 2).error is None
    writer.close()
    scenario.assert_both_sides_agree()


def test_the_next_one_waits_until_kafka_has_committed(scenario: PsycopgScenario) -> None:
    points: list[PausePoint] = []
    with scenario.writer(points.append, confirm="database") as writer:
        scenario.write(writer, 0)
        until_kafka_has_committed(scenario)
        held = scenario.emulator.faults.add(Fault(api="EndTxn", action=Hold()))
        scenario.write(writer, 1)
        points.clear()
        with writer.transaction() as tx:
            tx.connection.execute(INSERT, (20, "2/0"))
            tx.send(scenario.topic, value="2/0", key="k")
            held.wait_held()
            assert points == []
            held.release()
        scenario.expected.append("2/0")
    assert points[0] is PausePoint.AFTER_KAFKA_COMMIT
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("fault", FaultKind)
@pytest.mark.parametrize("point", POINTS)
def test_a_fault_at_a_point(scenario: PsycopgScenario, point: PausePoint, fault: FaultKind) -> None:
    hook = AtPoint(point, strike(fault, scenario.database, scenario.emulator), armed=False)
    writer = scenario.writer(hook, confirm="database")
    assert scenario.write(writer, 0).error is None
    hook.arm()
    scenario.write(writer, 1)
    assert hook.struck
    scenario.database.disarm()
    assert scenario.write(writer, 2).error is None
    writer.close()
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("action", [CloseBefore(), DropReply()])
def test_a_crash_while_the_commit_is_on_its_way(scenario: PsycopgScenario, action: CloseBefore | DropReply) -> None:
    """The row tells whoever takes the id over, whether Kafka has got the commit or not."""
    crashed = written_once(scenario)
    fault = scenario.emulator.faults.add(Fault(api="EndTxn", action=action, count=None))
    assert scenario.write(crashed, 1).error is None
    fault.wait()
    producer = crashed.coordinator.owned.kafka._live
    producer.close(timeout_s=0)
    fault.remove()
    with scenario.writer() as writer:
        writer.recover()
        scenario.assert_both_sides_agree()
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


def test_an_id_that_was_taken_over_while_the_commit_was_on_its_way(scenario: PsycopgScenario) -> None:
    older = written_once(scenario)
    fault = scenario.emulator.faults.add(Fault(api="EndTxn", action=Hold()))
    assert scenario.write(older, 1).error is None
    fault.wait_held()
    with scenario.writer(client_id="another process") as newer:
        newer.recover()
        scenario.assert_both_sides_agree()
        fault.release()
        assert isinstance(scenario.write(older, 2).error, FencedError)
        assert older.state is SlotState.FENCED
        assert scenario.write(newer, 3).error is None
    older.close()
    scenario.assert_both_sides_agree()


def test_a_transaction_that_kafka_lost_is_judged_by_the_next_use(
    scenario: PsycopgScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scenario.writer(confirm="database") as writer:
        assert scenario.write(writer, 1).error is None

        async def lost(kafka: BlockingKafkaParticipant) -> None:
            raise PreparedTransactionLost(
                "the broker has aborted it",
                transactional_id=scenario.transactional_id,
                prepared_state=str(scenario.row()),
                described_state="CompleteAbort",
                described_producer_id=1,
                described_producer_epoch=1,
                described_start_ms=0,
            )

        monkeypatch.setattr(BlockingKafkaParticipant, "commit", lost)
        assert scenario.write(writer, 2).error is None  # the take-over found it open, and committed it
        assert writer.state is SlotState.CONFIRMING
        monkeypatch.undo()
        assert scenario.write(writer, 3).error is None
    scenario.assert_both_sides_agree()


def test_close_waits_for_the_commit(scenario: PsycopgScenario) -> None:
    writer = scenario.writer(confirm="database")
    scenario.write(writer, 1)
    writer.close()
    scenario.assert_both_sides_agree()


def test_close_says_what_stays_in_doubt(scenario: PsycopgScenario, caplog: pytest.LogCaptureFixture) -> None:
    writer = written_once(scenario, max_block_ms=5_000)
    fault = scenario.emulator.faults.add(Fault(api="EndTxn", action=CloseBefore(), count=None))
    assert scenario.write(writer, 1).error is None
    with caplog.at_level(logging.WARNING):
        writer.close()
    assert f"{scenario.transactional_id} is closed while {scenario.row()} is in doubt" in caplog.text
    fault.remove()
    with scenario.writer() as newer:
        newer.recover()
    scenario.assert_both_sides_agree()


def stored_while_away(scenario: PsycopgScenario, **settings: Any) -> Any:
    """A writer whose second block is stored, and which has noticed that Kafka is back."""
    writer = written_once(scenario, when_kafka_is_away="store", **settings)
    scenario.emulator.crash_node(0)
    assert scenario.write(writer, 1).outcome is Outcome.STORED
    scenario.emulator.start_node(0)
    until(lambda: not writer.coordinator.owned.availability.is_away)
    return writer


def test_recover_waits_for_the_commit_of_what_it_publishes(scenario: PsycopgScenario) -> None:
    writer = stored_while_away(scenario)
    assert writer.recover().outcome is Outcome.PUBLISHED
    assert writer.state is SlotState.READY
    scenario.assert_both_sides_agree()
    writer.close()


def test_recover_says_that_what_it_publishes_is_not_confirmed(scenario: PsycopgScenario) -> None:
    """Nobody may use the id again, so somebody has to know."""
    writer = stored_while_away(scenario, max_block_ms=2_000)
    fault = scenario.emulator.faults.add(Fault(api="EndTxn", action=CloseBefore(), count=None))
    with pytest.raises(RetriableError, match="Kafka has not confirmed it"):
        writer.recover()
    fault.remove()
    assert writer.recover().outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree()
    writer.close()


def test_there_is_nothing_else_to_confirm(scenario: PsycopgScenario) -> None:
    with pytest.raises(ConfigError, match="'kafka' or 'database'"):
        scenario.writer(confirm="both")


# -- pools --


def pool_of(scenario: PsycopgScenario, **settings: Any) -> PsycopgDualWriterPool:
    return PsycopgDualWriterPool(
        conninfo_of(scenario.database.url),
        prefix=unique("follows"),
        bootstrap_servers=scenario.emulator.bootstrap_servers,
        confirm="database",
        **({"lease_ms": 600_000, "max_block_ms": 60_000} | settings),
    )


def put(pool: PsycopgDualWriterPool, scenario: PsycopgScenario, number: int) -> None:
    with pool.transaction() as tx:
        for index, body in enumerate(event_texts(str(number))):
            tx.connection.execute(INSERT, (number * 10 + index, body))
            tx.send(scenario.topic, value=body, key="k")
    assert tx.outcome is Outcome.COMMITTED
    scenario.expected += event_texts(str(number))


def test_a_pool_uses_an_id_again_when_kafka_has_committed(scenario: PsycopgScenario) -> None:
    with pool_of(scenario, max_writers=1) as pool:
        for number in range(5):
            put(pool, scenario, number)
        assert pool.status.leased_total == 1
    scenario.assert_both_sides_agree()


def test_a_pool_takes_another_id_rather_than_wait_for_kafka(scenario: PsycopgScenario) -> None:
    with pool_of(scenario, max_writers=2) as pool:
        for number in range(4):
            put(pool, scenario, number)
        assert pool.status.leased_total == 2
    scenario.assert_both_sides_agree()


def test_a_pool_hears_of_commits_under_ids_that_nobody_uses_again(scenario: PsycopgScenario) -> None:
    with pool_of(scenario, lease_ms=300) as pool:
        held = scenario.emulator.faults.add(Fault(api="EndTxn", action=Hold()))
        put(pool, scenario, 1)
        (slot,) = pool.coordinator.registry.all_slots()
        assert slot.coordinator.state is SlotState.CONFIRMING
        held.wait_held()
        held.release()
        until(lambda: slot.coordinator.state is SlotState.READY)
    scenario.assert_both_sides_agree()


def test_a_pool_resolves_ids_whose_commit_kafka_did_not_confirm(scenario: PsycopgScenario) -> None:
    with pool_of(scenario, lease_ms=300, max_block_ms=5_000) as pool:
        fault = scenario.emulator.faults.add(Fault(api="EndTxn", action=CloseBefore(), count=None))
        put(pool, scenario, 1)
        until(lambda: bool(pool.status.set_aside))
        fault.remove()
        until(lambda: not pool.status.set_aside)
        put(pool, scenario, 2)
    scenario.assert_both_sides_agree()


def test_a_pool_that_is_closed_has_heard_of_all_commits(scenario: PsycopgScenario) -> None:
    pool = pool_of(scenario)
    for number in range(3):
        put(pool, scenario, number)
    pool.close()
    scenario.assert_both_sides_agree()
    assert readable(scenario) == scenario.expected
