"""Blocks that the database stores while Kafka is away, and how they are published: on every blocking writer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.faults import CloseBefore, Fault
from dualwrite.delivery import Direct
from dualwrite.errors import (
    ConfigError,
    DualWriteError,
    FencedError,
    InvalidRecordError,
    KafkaTimeoutError,
    RetriableError,
    StateRowError,
    StoredBlockRefusedError,
    StoredBlocksError,
    StoreFullError,
)
from dualwrite.producer import ConsumerGroupMetadata, OffsetAndMetadata, Producer, TopicPartition
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.recovery.adoption import adopt
from tests.crash.awaited import AwaitedWriter
from tests.crash.conftest import AWAITED, BLOCKING, opened
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.crash.scenario import AnyScenario, AtPoint, InjectedError, Seen, event_texts
from tests.support.conditions import until
from tests.support.databases import event_bodies
from tests.support.topics import read_topic

AWAY: dict[str, Any] = {"delivery": Direct(when_kafka_is_away="store")}


@pytest.fixture(params=BLOCKING)
def scenario(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AnyScenario]:
    with opened(request.param, request, emulator, tmp_path) as scenario:
        yield scenario


@contextmanager
def kafka_away(emulator: Emulator) -> Iterator[None]:
    """Stop the only broker; it comes back on the same port with its log."""
    emulator.crash_node(0)
    yield
    emulator.start_node(0)


def stored_rows(scenario: AnyScenario) -> list[tuple[int, int]]:
    """The numbers and sizes of the blocks that are stored under the scenario's id."""
    query = sa.text(
        "SELECT seq, length(records) FROM kafka_transaction_redo WHERE transactional_id = :id AND seq > 0 ORDER BY seq"
    )
    with scenario.database.aside.connect() as connection:
        return [(seq, size) for seq, size in connection.execute(query, {"id": scenario.transactional_id})]


def write(scenario: AnyScenario, writer: Any, number: int) -> Seen:
    seen: Seen = scenario.write(writer, number)
    return seen


async def noticed(availability: Any) -> None:
    """Wait until the writer or pool has noticed that Kafka is back."""
    await asyncio.to_thread(until, lambda: not availability.is_away)


def notice(writer: Any) -> None:
    """Let a writer of either face notice that Kafka is back."""
    if isinstance(writer, AwaitedWriter):
        writer.run(noticed(writer.awaited.coordinator.owned.availability))
    else:
        until(lambda: not writer.coordinator.owned.availability.is_away)


def published(writer: Any) -> Outcome:
    """Recover with a writer that has noticed Kafka's return, and return the outcome."""
    notice(writer)
    outcome: Outcome = next((found.outcome for found in writer.recover()), Outcome.NOTHING)
    return outcome


def assert_stored(seen: Seen) -> None:
    assert (seen.error, seen.outcome) == (None, Outcome.STORED)


@pytest.mark.parametrize("scenario", [*BLOCKING, *AWAITED], indirect=True)
def test_blocks_are_stored_and_then_published_in_order(scenario: AnyScenario, emulator: Emulator) -> None:
    with scenario.writer(**AWAY) as writer:
        write(scenario, writer, 1)
        with kafka_away(emulator):
            for number in (2, 3, 4):
                assert_stored(write(scenario, writer, number))
            assert [seq for seq, _ in stored_rows(scenario)] == [1, 2, 3]
            assert event_bodies(scenario.database) == scenario.expected
        assert published(writer) is Outcome.PUBLISHED
        assert stored_rows(scenario) == []
        assert write(scenario, writer, 5).outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree()


def test_the_next_block_publishes_them_first(scenario: AnyScenario, emulator: Emulator) -> None:
    with scenario.writer(**AWAY) as writer:
        with kafka_away(emulator):
            assert_stored(write(scenario, writer, 1))
        notice(writer)
        assert write(scenario, writer, 2).outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree()


def test_a_block_before_the_next_attempt_is_stored_behind_them(scenario: AnyScenario, emulator: Emulator) -> None:
    with scenario.writer(**AWAY) as writer:
        with kafka_away(emulator):
            assert_stored(write(scenario, writer, 1))
        notice(writer)
        writer.coordinator._publishing._not_before_s = float("inf")
        assert_stored(write(scenario, writer, 2))
        assert len(stored_rows(scenario)) == 2
        published(writer)
    scenario.assert_both_sides_agree()


def test_a_new_writer_stores_behind_what_a_dead_one_stored_and_publishes_both(
    scenario: AnyScenario, emulator: Emulator
) -> None:
    with kafka_away(emulator), scenario.writer(**AWAY) as writer:
        assert_stored(write(scenario, writer, 1))
    with scenario.writer(delivery=Direct(when_kafka_is_away="store")) as writer:
        assert_stored(write(scenario, writer, 2))
        assert stored_rows(scenario) == []
        assert writer.state is SlotState.READY
        assert write(scenario, writer, 3).outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree()


def test_a_writer_that_stores_nothing_refuses_once_and_then_publishes_them(
    scenario: AnyScenario, emulator: Emulator
) -> None:
    with kafka_away(emulator), scenario.writer(**AWAY) as writer:
        assert_stored(write(scenario, writer, 1))
    with scenario.writer() as writer:
        assert isinstance(write(scenario, writer, 2).error, StoredBlocksError)
        assert write(scenario, writer, 3).outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree()


def test_what_was_in_doubt_is_completed_before_the_stored_blocks(scenario: AnyScenario, emulator: Emulator) -> None:
    dies = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, lambda: emulator.crash_node(0))
    with scenario.writer(dies, **AWAY) as writer:
        assert write(scenario, writer, 1).outcome is Outcome.COMMITTED
        assert_stored(write(scenario, writer, 2))
        assert not writer.in_doubt.is_empty
        emulator.start_node(0)
        assert published(writer) is Outcome.PUBLISHED
        assert writer.in_doubt.is_empty
    scenario.assert_both_sides_agree()


def test_without_the_setting_the_block_is_refused(scenario: AnyScenario, emulator: Emulator) -> None:
    with scenario.writer() as writer, kafka_away(emulator):
        assert isinstance(write(scenario, writer, 1).error, KafkaTimeoutError)
    scenario.assert_both_sides_agree()


def test_a_block_with_consumed_offsets_is_refused(scenario: AnyScenario, emulator: Emulator) -> None:
    """Its consumer group may go on without them."""

    def write_with_offsets() -> Any:
        block: Any = writer.transaction()
        with block as tx:
            tx.send(scenario.topic, "refused")
            tx.send_offsets({TopicPartition(scenario.topic, 0): OffsetAndMetadata(1)}, ConsumerGroupMetadata("group"))

    with scenario.writer(**AWAY) as writer, kafka_away(emulator):
        with pytest.raises(KafkaTimeoutError):
            write_with_offsets()
        assert_stored(write(scenario, writer, 1))
        with pytest.raises(KafkaTimeoutError):
            write_with_offsets()
        assert len(stored_rows(scenario)) == 1


# ---- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "says"),
    [({"max_stored_bytes": 200}, "max_stored_bytes"), ({"max_stored_age_ms": 1}, "max_stored_age_ms")],
)
def test_at_a_limit_blocks_are_refused(
    scenario: AnyScenario, emulator: Emulator, limit: dict[str, Any], says: str
) -> None:
    with scenario.writer(delivery=Direct(when_kafka_is_away="store", **limit)) as writer:
        with kafka_away(emulator):
            seen = [write(scenario, writer, number) for number in range(1, 5)]
        assert seen[0].outcome is Outcome.STORED
        assert isinstance(seen[-1].error, StoreFullError)
        assert says in str(seen[-1].error)
        assert seen[-1].outcome is Outcome.ROLLED_BACK
        published(writer)
    scenario.assert_both_sides_agree()


def test_a_record_that_the_producer_would_refuse_is_not_stored(scenario: AnyScenario, emulator: Emulator) -> None:
    """It would keep all stored blocks behind it from being published."""
    with scenario.writer(**AWAY) as writer, kafka_away(emulator):
        assert_stored(write(scenario, writer, 1))
        block: Any = writer.transaction()
        with pytest.raises(InvalidRecordError, match=r"max\.request\.size"), block as tx:
            tx.send(scenario.topic, b"x" * 5_000_000)
        assert len(stored_rows(scenario)) == 1


def test_many_stored_blocks_are_published_by_several_transactions(
    scenario: AnyScenario, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualwrite.recipes.core.stored_blocks.MOST_BYTES_AT_A_TIME", 250)
    prepared: list[PausePoint] = []
    with scenario.writer(lambda point: prepared.append(point), **AWAY) as writer:
        with kafka_away(emulator):
            for number in range(1, 8):
                assert_stored(write(scenario, writer, number))
        prepared.clear()
        published(writer)
    assert prepared.count(PausePoint.AFTER_PREPARE) > 2
    scenario.assert_both_sides_agree()


# ---- crashes --------------------------------------------------------------------------------------------------------


def fail() -> None:
    raise InjectedError


STORING = (
    PausePoint.AFTER_LOCK,
    PausePoint.AFTER_STATE_WRITE,
    PausePoint.BEFORE_DATABASE_COMMIT,
    PausePoint.AFTER_DATABASE_COMMIT,
)


@pytest.mark.parametrize("point", STORING)
def test_a_failure_at_every_point_of_storing(scenario: AnyScenario, emulator: Emulator, point: PausePoint) -> None:
    fails = AtPoint(point, fail, armed=False)
    with scenario.writer(fails, **AWAY) as writer:
        with kafka_away(emulator):
            assert_stored(write(scenario, writer, 1))
            fails.arm()
            seen = scenario.write_events(writer, 2)
            if point is PausePoint.AFTER_DATABASE_COMMIT:
                assert seen.outcome is Outcome.STORED
                scenario.expected += event_texts("2")
            else:
                assert isinstance(seen.error, InjectedError)
            assert_stored(write(scenario, writer, 3))
        published(writer)
    assert fails.struck
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize(
    ("scenario", "point"),
    [
        *product(BLOCKING, PausePoint),
        *product(AWAITED, (PausePoint.AFTER_SEND, PausePoint.AFTER_STATE_WRITE, PausePoint.AFTER_DATABASE_COMMIT)),
    ],
    indirect=["scenario"],
)
def test_a_crash_at_every_point_of_publishing(scenario: AnyScenario, emulator: Emulator, point: PausePoint) -> None:
    with kafka_away(emulator), scenario.writer(**AWAY) as writer:
        for number in (1, 2):
            assert_stored(write(scenario, writer, number))
    dies = AtPoint(point, fail)
    with scenario.writer(dies, **AWAY) as dying, pytest.raises(InjectedError):
        dying.recover()
    assert dies.struck
    with scenario.writer(**AWAY) as writer:
        published(writer)
        write(scenario, writer, 3)
        published(writer)
    assert stored_rows(scenario) == []
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("point", [PausePoint.AFTER_INIT, PausePoint.AFTER_BEGIN, PausePoint.AFTER_SEND])
def test_kafka_leaves_again_while_they_are_published(
    scenario: AnyScenario, emulator: Emulator, point: PausePoint
) -> None:
    leaves = AtPoint(point, lambda: emulator.crash_node(0), armed=False)
    with scenario.writer(leaves, **AWAY) as writer:
        with kafka_away(emulator):
            assert_stored(write(scenario, writer, 1))
        notice(writer)
        leaves.arm()
        with pytest.raises(KafkaTimeoutError):
            writer.recover()
        assert_stored(write(scenario, writer, 2))
        emulator.start_node(0)
        published(writer)
        assert write(scenario, writer, 3).outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree()


def test_a_writer_that_is_fenced_while_it_publishes_says_so(scenario: AnyScenario, emulator: Emulator) -> None:
    """The next block takes no id over from another process."""
    fenced = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, lambda: initialise(scenario, emulator), armed=False)
    with scenario.writer(fenced, **AWAY) as writer:
        with kafka_away(emulator):
            assert_stored(write(scenario, writer, 1))
        notice(writer)
        fenced.arm()
        assert isinstance(write(scenario, writer, 2).error, FencedError)
        assert fenced.struck
        assert writer.state is SlotState.FENCED
    with scenario.writer(**AWAY) as writer:
        assert write(scenario, writer, 3).outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree()


def test_recover_says_that_what_it_publishes_is_not_confirmed(scenario: AnyScenario, emulator: Emulator) -> None:
    """No process may use the id again, so an operator has to know."""
    with scenario.writer(max_block_ms=2_000, **AWAY) as writer:
        with kafka_away(emulator):
            assert_stored(write(scenario, writer, 1))
        notice(writer)
        fault = emulator.faults.add(Fault(api="EndTxn", action=CloseBefore(), count=None))
        with pytest.raises(RetriableError, match="Kafka has not confirmed it"):
            writer.recover()
        fault.remove()
        assert [found.outcome for found in writer.recover()] == [Outcome.COMMITTED]
    scenario.assert_both_sides_agree()


def initialise(scenario: AnyScenario, emulator: Emulator) -> None:
    """Fence the id's producer, and leave its prepared transaction."""
    producer = Producer(
        bootstrap_servers=emulator.bootstrap_servers,
        transactional_id=scenario.kafka_id,
        transaction_two_phase_commit_enable=True,
    )
    producer.init_transactions(keep_prepared_txn=True)
    producer.close(timeout_s=0)


@pytest.mark.parametrize("applied", [True, False])
def test_the_lost_response_of_a_commit_that_stores(scenario: AnyScenario, emulator: Emulator, applied: bool) -> None:
    with scenario.writer(**AWAY) as writer:
        with kafka_away(emulator):
            assert_stored(write(scenario, writer, 1))
            scenario.database.lose_commit(applied=applied)
            seen = scenario.write_events(writer, 2)
            scenario.database.disarm()
            assert seen.outcome is (Outcome.STORED if applied else Outcome.ROLLED_BACK)
            assert (seen.error is None) is applied
            scenario.expected += event_texts("2") if applied else []
            assert_stored(write(scenario, writer, 3))
        published(writer)
    scenario.assert_both_sides_agree()


def test_two_processes_that_store_at_once_are_ordered_by_the_row(scenario: AnyScenario, emulator: Emulator) -> None:
    with scenario.writer(**AWAY) as first, scenario.writer(**AWAY) as second:
        with kafka_away(emulator):
            for number, writer in enumerate((first, second, second, first), start=1):
                assert_stored(write(scenario, writer, number))
        published(first)
        published(second)
        assert write(scenario, second, 5).outcome is Outcome.COMMITTED
    assert [value for _, value in read_topic(emulator.bootstrap_servers, scenario.topic)] == scenario.expected
    scenario.assert_both_sides_agree()


# ---- settings and the table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"when_kafka_is_away": True}, "when_kafka_is_away takes 'refuse' or 'store', not True"),
        ({"max_stored_bytes": 0}, "max_stored_bytes takes a whole number of at least 1, not 0"),
        ({"max_stored_age_ms": "1"}, "max_stored_age_ms takes a whole number of at least 1, not '1'"),
        ({"max_stored_bytes": 1}, 'max_stored_bytes has no effect without when_kafka_is_away="store"'),
        ({"max_stored_age_ms": 1}, 'max_stored_age_ms has no effect without when_kafka_is_away="store"'),
    ],
)
def test_a_delivery_checks_its_settings(setting: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Direct(**setting)
    assert says in str(raised.value)


def has_table(scenario: AnyScenario) -> bool:
    return sa.inspect(scenario.database.aside).has_table("kafka_transaction_redo")


def test_the_table_is_made_only_for_writers_that_need_it(scenario: AnyScenario) -> None:
    with scenario.writer() as writer:
        write(scenario, writer, 1)
    assert not has_table(scenario)
    refused = scenario.writer(create_table=False, **AWAY)
    with refused, pytest.raises(StateRowError, match="`dualwrite init-db --redo`"):
        refused.recover()
    with scenario.writer(**AWAY) as writer:
        write(scenario, writer, 2)
    assert has_table(scenario)
    scenario.assert_both_sides_agree()


def test_a_transaction_that_is_ended_past_us_stores_nothing(scenario: AnyScenario, emulator: Emulator) -> None:
    """The same proof as for any decision: the transaction that locked the row is still running."""
    connections: list[Any] = []

    def end_it() -> None:
        driver = getattr(connections[0], "connection", connections[0])
        with closing(driver.cursor()) as cursor:
            cursor.execute("ROLLBACK")

    ends = AtPoint(PausePoint.AFTER_LOCK, end_it, armed=False)
    with scenario.writer(ends, **AWAY) as writer, kafka_away(emulator):
        assert_stored(write(scenario, writer, 1))
        ends.arm()
        block: Any = writer.transaction()
        with pytest.raises((DualWriteError, sa.exc.SQLAlchemyError, psycopg.Error)) as caught, block as tx:
            connections.append(tx.connection)
            tx.send(scenario.topic, "2")
        is_refused = isinstance(scenario, PsycopgScenario)  # the connection does not let the statement through
        assert ("was not executed inside a dual write" in str(caught.value)) is is_refused
        assert tx.outcome is (Outcome.ROLLED_BACK if is_refused else None)
        assert len(stored_rows(scenario)) == 1


def test_damaged_records_are_told_and_nothing_is_published(scenario: AnyScenario, emulator: Emulator) -> None:
    with kafka_away(emulator), scenario.writer(**AWAY) as writer:
        assert_stored(write(scenario, writer, 1))
    damage = sa.text("UPDATE kafka_transaction_redo SET records = :damaged WHERE seq = 1")
    with scenario.database.aside.begin() as connection:
        connection.execute(damage, {"damaged": b"damaged"})
    with scenario.writer(**AWAY) as writer, pytest.raises(StoredBlockRefusedError, match=r"block 1 .* checksum"):
        writer.recover()
    assert read_topic(emulator.bootstrap_servers, scenario.topic) == []


def test_a_copy_of_the_database_forgets_what_the_original_publishes(scenario: AnyScenario, emulator: Emulator) -> None:
    with kafka_away(emulator), scenario.writer(**AWAY) as writer:
        assert_stored(write(scenario, writer, 1))
    adopt(scenario.database.aside, "copied", force=True)
    assert stored_rows(scenario) == []
