"""Interleavings of the blocks of a pool and of its publisher, while Kafka goes away and comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest import mock

import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Direct, Outbox
from dualwrite.errors import IllegalStateError, KafkaUnreachableError, StateRowError, StoreFullError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.leases import outbox_prefix_of
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.proof import is_settled
from dualwrite.recipes.core.publishing import Publishing
from dualwrite.recipes.pool import outbox, outbox_publisher
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.sql.diversion_statements import DiversionRow
from tests.crash.outbox_worker import AtPointOf
from tests.crash.psycopg_scenario import PsycopgScenario, conninfo_of
from tests.producer.tiers import TIERS
from tests.recipes.away import AWAY, kafka_away
from tests.recipes.outboxes import in_order, outbox_pool, pool_prefix, scenario, scenario_of, settings_for, waiting
from tests.recipes.pools import QUIET_LEASE_MS, isolated_source, put, write
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase, waits_for_a_lock

__all__ = ["scenario"]  # a fixture

PATIENT: dict[str, Any] = {"unreachable_timeout_ms": None}
"""A pool that never finds Kafka away, because it waits for it."""

_STATE = "SELECT prepared_transaction_state FROM kafka_transaction_state WHERE transactional_id = :id"
_MANIFEST = "SELECT manifest FROM kafka_transaction_state WHERE transactional_id = :id"
_ASK = "UPDATE kafka_transaction_outbox SET stored_at_ms = 1 WHERE transactional_id = :id AND seq = -1"
_END_ALONE = "UPDATE kafka_transaction_outbox SET stored_at_ms = 0 WHERE transactional_id = :id AND seq = 0"
_SET_STATE = "UPDATE kafka_transaction_state SET prepared_transaction_state = :state WHERE transactional_id = :id"


def pool_of(scenario: PsycopgScenario, source: Any = None, **settings: Any) -> PsycopgDualWriter:
    return PsycopgDualWriter(
        source or conninfo_of(scenario.database.url), **settings_for(scenario, **{**AWAY, **settings})
    )


def is_diverted(scenario: PsycopgScenario) -> bool:
    """Whether the row says so, whatever a process believes."""
    query = sa.text("SELECT stored_at_ms FROM kafka_transaction_outbox WHERE transactional_id = :id AND seq = 0")
    with scenario.database.aside.connect() as connection:
        return bool(connection.scalar(query, {"id": outbox_prefix_of(pool_prefix(scenario))}))


@contextmanager
def publishing_nothing(*pools: PsycopgDualWriter) -> Iterator[None]:
    """Keep these pools from publishing, as if the process with the lease were slow."""
    with mock.patch.object(Publishing, "recover", side_effect=OSError("slow")):
        for pool in pools:
            assert pool.pool.outbox is not None
            pool.pool.outbox._has_recovered = False
        yield


class InMainThread:
    """A pause hook that acts once, in the thread of the test, when it is armed."""

    def __init__(self, point: PausePoint, act: Callable[[], None]) -> None:
        self._point = point
        self._act = act
        self._thread = threading.current_thread()
        self.is_armed = False

    def __call__(self, point: PausePoint) -> None:
        if self.is_armed and point is self._point and threading.current_thread() is self._thread:
            self.is_armed = False
            self._act()


def test_a_block_that_waited_for_the_row_of_a_stored_block_is_published_after_that(
    scenario: PsycopgScenario, emulator: Emulator
) -> None:
    """The block began before Kafka went away, and Kafka is back when the block ends."""
    pause = InMainThread(PausePoint.BEFORE_DATABASE_COMMIT, lambda: emulator.start_node(0))
    with (
        pool_of(scenario, pause=pause) as first,
        pool_of(scenario, **PATIENT) as second,
        ThreadPoolExecutor(1) as threads,
    ):
        write(first, scenario, 1)
        write(second, scenario, 2)

        def change_last() -> Outcome | None:
            with second.transaction() as tx:
                tx.connection.execute("UPDATE events SET body = body WHERE id = 1")
                put(tx, scenario, 4)
            return tx.outcome

        with publishing_nothing(first, second):
            emulator.crash_node(0)
            with first.transaction() as tx:
                tx.connection.execute("UPDATE events SET body = body WHERE id = 1")
                put(tx, scenario, 3)
                last = threads.submit(change_last)
                until(lambda: waits_for_a_lock(scenario.database, "UPDATE events"))
                pause.is_armed = True
            assert tx.outcome is Outcome.STORED
            assert last.result() is Outcome.STORED
        until(lambda: not is_diverted(scenario))
    assert in_order(scenario) == ["1", "2", "3", "4"]


def test_the_diversion_does_not_end_while_a_block_adds_its_records(
    scenario: PsycopgScenario, emulator: Emulator
) -> None:
    """The publisher could not see the block, which has not committed yet, and waits for its lock."""

    def come_back() -> None:
        emulator.start_node(0)
        until(lambda: waits_for_a_lock(scenario.database, "kafka_transaction_outbox"))

    pause = InMainThread(PausePoint.BEFORE_DATABASE_COMMIT, come_back)
    with pool_of(scenario, pause=pause) as pool:
        write(pool, scenario, 1)
        emulator.crash_node(0)
        write(pool, scenario, 2)
        pause.is_armed = True
        assert write(pool, scenario, 3).outcome is Outcome.STORED
        assert not pause.is_armed
        until(lambda: not is_diverted(scenario))
        assert waiting(scenario) == 0
    assert in_order(scenario) == ["1", "2", "3"]


def test_the_diversion_ends_although_blocks_add_records_all_the_time(
    scenario: PsycopgScenario, emulator: Emulator
) -> None:
    """Eight threads of two pools never pause: each look of the publisher would find records."""
    with pool_of(scenario) as first, pool_of(scenario) as second, ThreadPoolExecutor(8) as threads:
        numbers, is_over = count(1), threading.Event()

        def go_on(pool: PsycopgDualWriter) -> None:
            while not is_over.is_set():
                number = next(numbers)
                while True:
                    try:
                        write(pool, scenario, number)
                        break
                    except psycopg.errors.DeadlockDetected:
                        continue  # rolled back, with another block that found the diversion ended

        try:
            running = [threads.submit(go_on, pool) for pool in (first, second) * 4]
            with kafka_away(emulator):
                until(lambda: all(pool.status.outbox_blocks for pool in (first, second)))
            until(lambda: not is_diverted(scenario))
        finally:
            is_over.set()
        for thread in running:
            thread.result()
        until(lambda: not is_diverted(scenario))  # a block that has found Kafka away, and ends later, begins it again
    assert sorted(map(int, in_order(scenario))) == list(range(1, next(numbers)))


def test_a_block_waits_for_an_end_that_does_not_come_only_once(
    scenario: PsycopgScenario, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the publisher has died: the next blocks of the process do not wait."""
    with pool_of(scenario, lease_ms=QUIET_LEASE_MS) as pool:
        write(pool, scenario, 1)
        publisher: Any = pool.pool.outbox
        slept = mock.AsyncMock()
        monkeypatch.setattr(publisher.writes, "_sleep", slept)
        monkeypatch.setattr(outbox, "_MOST_SECONDS_TO_WAIT", 0.1)
        with mock.patch.object(publisher, "_end_diversion", return_value=False):
            with kafka_away(emulator):
                write(pool, scenario, 2)
            until(lambda: in_order(scenario) == ["1", "2"])
            with scenario.database.aside.begin() as connection:
                connection.execute(sa.text(_ASK), {"id": outbox_prefix_of(pool_prefix(scenario))})
            assert write(pool, scenario, 3).outcome is Outcome.STORED
            assert slept.await_count
            slept.reset_mock()
            assert write(pool, scenario, 4).outcome is Outcome.STORED
            assert not slept.await_count
        until(lambda: not is_diverted(scenario))
        assert write(pool, scenario, 5).outcome is Outcome.COMMITTED
    assert in_order(scenario) == ["1", "2", "3", "4", "5"]


def test_blocks_that_find_the_diversion_ended_begin_it_again(
    scenario: PsycopgScenario, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both blocks saw a diversion: the first begins it again, and the other, which waits for that alone, holds it."""
    found: list[Future[Any]] = []
    hold = DiversionRow.hold

    async def hold_beside_another(self: DiversionRow) -> bool:
        is_on = await hold(self)
        if not found:
            found.append(threads.submit(write, pool, scenario, 4))
            until(lambda: waiters(scenario) == 1)
        return is_on

    with pool_of(scenario, lease_ms=QUIET_LEASE_MS) as pool, ThreadPoolExecutor(1) as threads:
        write(pool, scenario, 1)
        with kafka_away(emulator):
            write(pool, scenario, 2)
            with scenario.database.aside.begin() as publisher:
                publisher.execute(sa.text(_END_ALONE), {"id": outbox_prefix_of(pool_prefix(scenario))})
            monkeypatch.setattr(DiversionRow, "hold", hold_beside_another)
            assert write(pool, scenario, 3).outcome is Outcome.STORED
            assert [each.result().outcome for each in found] == [Outcome.STORED]
            assert is_diverted(scenario)
        until(lambda: not is_diverted(scenario))
    assert in_order(scenario) == ["1", "2", "3", "4"]


def test_blocks_waiting_for_the_end_of_a_diversion_do_not_wait_for_each_other(
    scenario: PsycopgScenario, emulator: Emulator
) -> None:
    """One of the blocks begins the diversion again; the others hold it."""
    with pool_of(scenario, lease_ms=QUIET_LEASE_MS) as pool, ThreadPoolExecutor(3) as threads:
        write(pool, scenario, 1)
        with kafka_away(emulator):
            write(pool, scenario, 2)
            with scenario.database.aside.begin() as publisher:
                publisher.execute(sa.text(_END_ALONE), {"id": outbox_prefix_of(pool_prefix(scenario))})
                found = [threads.submit(write, pool, scenario, number) for number in (3, 4, 5)]
                until(lambda: waiters(scenario) == 3)
            assert [each.result().outcome for each in found] == [Outcome.STORED] * 3
            assert is_diverted(scenario)
        until(lambda: not is_diverted(scenario))
    assert sorted(in_order(scenario)) == ["1", "2", "3", "4", "5"]


def waiters(scenario: PsycopgScenario) -> int:
    """How many transactions wait for the row of a diversion."""
    query = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND query LIKE '%kafka_transaction_outbox%' AND datname = current_database()"
    )
    with scenario.database.aside.connect() as connection:
        return int(connection.scalar(query) or 0)


def test_the_offsets_of_a_stored_block_stay_unknown(scenario: PsycopgScenario, emulator: Emulator) -> None:
    """Kafka has acknowledged one of its records before it went away, and aborts that copy."""
    sent: list[Any] = []

    def go_away() -> None:
        until(lambda: sent[0].fate.done())
        emulator.crash_node(0)

    pause = InMainThread(PausePoint.AFTER_SEND, go_away)
    with pool_of(scenario, pause=pause, linger_ms=0) as pool:
        write(pool, scenario, 1)
        pause.is_armed = True
        with pool.transaction() as tx:
            sent += [tx.send(scenario.topic, key="k", value=value) for value in ("2", "3")]
        assert tx.outcome is Outcome.STORED
        for record in sent:
            with pytest.raises(IllegalStateError, match="has not been sent"):
                _ = record.metadata
        emulator.start_node(0)
        until(lambda: not is_diverted(scenario))
    assert in_order(scenario) == ["1", "2", "3"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_from_before_does_not_hide_the_diversion(
    scenario: PsycopgScenario, emulator: Emulator, level: str
) -> None:
    """Such a block follows the others to the outbox, or is rolled back and may be repeated."""
    with pool_of(scenario, isolated_source(scenario, level), **PATIENT) as second, pool_of(scenario) as first:
        write(first, scenario, 1)
        write(second, scenario, 2)
        with publishing_nothing(first, second):
            with pytest.raises(psycopg.errors.SerializationFailure), second.transaction() as tx:
                tx.connection.execute("SELECT count(*) FROM events")
                with kafka_away(emulator):
                    assert write(first, scenario, 3).outcome is Outcome.STORED
                put(tx, scenario, 4)
            assert tx.outcome is Outcome.ROLLED_BACK
            assert write(second, scenario, 4).outcome is Outcome.STORED
        until(lambda: not is_diverted(scenario))
        assert write(second, scenario, 5).outcome is Outcome.COMMITTED
    assert in_order(scenario) == ["1", "2", "3", "4", "5"]


def test_a_block_that_begins_without_kafka_and_ends_with_kafka_does_not_wait_for_itself(
    scenario: PsycopgScenario, emulator: Emulator
) -> None:
    """At this level it takes its turn, the only one, before its snapshot, and its id only with Kafka."""
    with pool_of(scenario) as before:
        write(before, scenario, 1)
    with pool_of(scenario, isolated_source(scenario, "REPEATABLE READ"), max_writers=1) as pool:
        availability = pool.pool.availability
        emulator.crash_node(0)
        availability.note(KafkaUnreachableError("no broker", since_s=0.5, problem="refused"))
        with pool.transaction() as tx:
            put(tx, scenario, 2)
            emulator.start_node(0)
            until(lambda: not availability.is_away)
        assert tx.outcome is Outcome.COMMITTED
    assert in_order(scenario) == ["1", "2"]


def test_a_process_that_was_succeeded_does_not_end_the_diversion(scenario: PsycopgScenario, emulator: Emulator) -> None:
    """The transaction of the other's last batch may be in doubt."""
    with pool_of(scenario, lease_ms=QUIET_LEASE_MS) as pool:
        write(pool, scenario, 1)
        publisher: Any = pool.pool.outbox
        with mock.patch.object(publisher, "_end_diversion", return_value=False):
            with kafka_away(emulator):
                write(pool, scenario, 2)
            until(lambda: in_order(scenario) == ["1", "2"])
            until(lambda: publisher._has_recovered)
            publisher.begin_no_more()
            for background in publisher._loops._started.values():
                blocking.run(background.join(30))
        with scenario.database.aside.begin() as connection:
            was = connection.scalar(sa.text(_STATE), {"id": scenario.transactional_id})
            connection.execute(sa.text(_SET_STATE), {"id": scenario.transactional_id, "state": "1:0"})
        assert not blocking.run(publisher._end_diversion())
        assert is_diverted(scenario)
        with scenario.database.aside.begin() as connection:
            connection.execute(sa.text(_SET_STATE), {"id": scenario.transactional_id, "state": was})
        assert blocking.run(publisher._end_diversion())
        assert not is_diverted(scenario)


@pytest.mark.parametrize("tier", [Tier.BOUNDED, Tier.BOUNDED_V1])
def test_the_last_batch_is_settled_when_the_diversion_ends(
    postgres: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, tier: Tier
) -> None:
    """Later the publisher rests, and the log may lose the evidence."""
    monkeypatch.setattr(outbox_publisher, "_IDLE_S_TO_SETTLE", 3_600.0)
    with Emulator(config=TIERS[tier]) as emulator:
        scenario = scenario_of(postgres, emulator)
        with pool_of(scenario) as pool:
            write(pool, scenario, 1)
            publisher: Any = pool.pool.outbox
            with mock.patch.object(publisher, "_end_diversion", return_value=False):
                with kafka_away(emulator):
                    write(pool, scenario, 2)
                until(lambda: in_order(scenario) == ["1", "2"])
                assert write(pool, scenario, 3).outcome is Outcome.STORED
                until(lambda: in_order(scenario) == ["1", "2", "3"])
            until(lambda: not is_diverted(scenario))
            with scenario.database.aside.connect() as connection:
                state = connection.scalar(sa.text(_STATE), {"id": scenario.transactional_id})
                manifest = connection.scalar(sa.text(_MANIFEST), {"id": scenario.transactional_id})
        assert is_settled(PreparedTxnState(state), manifest)


def test_a_publisher_whose_blocks_are_never_diverted_ends_the_diversion(
    scenario: PsycopgScenario, emulator: Emulator
) -> None:
    """As `dualwrite publish`, which leads at all times."""
    with outbox_pool(scenario, lease_ms=QUIET_LEASE_MS) as publisher, pool_of(scenario) as pool:
        publisher.recover()
        write(pool, scenario, 1)
        with kafka_away(emulator):
            assert write(pool, scenario, 2).outcome is Outcome.STORED
        until(lambda: not is_diverted(scenario))
        assert (publisher.status.publishes_outbox, pool.status.publishes_outbox) == (True, False)
        assert write(pool, scenario, 3).outcome is Outcome.COMMITTED
    assert in_order(scenario) == ["1", "2", "3"]


def test_blocks_follow_those_that_a_pool_with_an_outbox_has_left(scenario: PsycopgScenario, emulator: Emulator) -> None:
    with outbox_pool(scenario, Outbox(publishes=False)) as before:
        write(before, scenario, 1)
    with pool_of(scenario) as pool:
        write(pool, scenario, 2)
        until(lambda: in_order(scenario) == ["1", "2"])
        until(lambda: not is_diverted(scenario))
        assert write(pool, scenario, 3).outcome is Outcome.COMMITTED


def test_the_last_batch_of_a_pool_with_an_outbox_is_completed(scenario: PsycopgScenario, emulator: Emulator) -> None:
    """Nothing waits, so that no block is diverted, and the transaction would hold up readers for ever."""
    pause = AtPointOf(PausePoint.AFTER_DATABASE_COMMIT, lambda: emulator.crash_node(0), of_publisher=True)
    with outbox_pool(scenario, pause=pause) as before:
        write(before, scenario, 1)
        until(lambda: before.status.kafka_away_since_s is not None)
    assert waiting(scenario) == 0
    emulator.start_node(0)
    with pool_of(scenario) as pool:
        (found,) = pool.recover()
        assert (found.transactional_id, found.outcome) == (scenario.transactional_id, Outcome.COMMITTED)
        assert in_order(scenario) == ["1"]
        assert write(pool, scenario, 2).outcome is Outcome.COMMITTED
    assert in_order(scenario) == ["1", "2"]


def test_a_full_outbox_refuses_blocks_and_changes_neither_side(scenario: PsycopgScenario, emulator: Emulator) -> None:
    delivery = Direct(when_kafka_is_away="store", max_stored_bytes=1)
    with pool_of(scenario, delivery=delivery) as pool:
        with kafka_away(emulator):
            write(pool, scenario, 1)
            until(lambda: pool.status.outbox_blocks == 1)
            with pytest.raises(StoreFullError), pool.transaction() as tx:
                put(tx, scenario, 2)
            assert tx.outcome is Outcome.ROLLED_BACK
        until(lambda: not is_diverted(scenario))
        assert write(pool, scenario, 3).outcome is Outcome.COMMITTED
    assert in_order(scenario) == ["1", "3"]


def test_a_deleted_row_refuses_blocks_until_it_is_restored(scenario: PsycopgScenario, emulator: Emulator) -> None:
    with pool_of(scenario) as pool:
        write(pool, scenario, 1)
        with scenario.database.aside.begin() as connection:
            connection.execute(sa.text("DELETE FROM kafka_transaction_outbox WHERE seq = 0"))
        with pytest.raises(StateRowError, match="no row with seq 0"):
            write(pool, scenario, 2)
    with pool_of(scenario) as pool:
        assert write(pool, scenario, 3).outcome is Outcome.COMMITTED
    assert in_order(scenario) == ["1", "3"]
