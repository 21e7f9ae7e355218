"""A pool whose blocks go to an outbox while Kafka is away: on each database, and on psycopg alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Direct
from dualwrite.errors import ConfigError, RowLockTimeoutError, StoredBlocksError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core import publishing
from dualwrite.recipes.core.leases import outbox_id_of, outbox_prefix_of
from dualwrite.recipes.sqlalchemy.sessions import current_dual_write, dual_write_sessions, send
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import AnyScenario
from tests.recipes.away import AWAY, kafka_away
from tests.recipes.pools import AnyPool, make_pool, prefix_of, put, write
from tests.recipes.pools import scenario as scenario
from tests.support.conditions import until
from tests.support.databases import event_bodies
from tests.support.event_class import Event
from tests.support.topics import read_topic


def bodies(scenario: AnyScenario) -> list[str]:
    return [str(value) for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]


def in_outbox(scenario: AnyScenario) -> int:
    """How many blocks wait in the outbox of the pool."""
    query = sa.text("SELECT count(*) FROM kafka_transaction_outbox WHERE seq > 0 AND transactional_id = :id")
    with scenario.database.aside.connect() as connection:
        return int(connection.scalar(query, {"id": outbox_id_of(prefix_of(scenario))}) or 0)


def assert_published(scenario: AnyScenario, pool: AnyPool) -> None:
    """Wait until the background has published everything, and blocks go to Kafka again; compare both sides."""
    until(lambda: not pool.status.is_diverted)
    assert in_outbox(scenario) == 0
    assert sorted(bodies(scenario)) == sorted(event_bodies(scenario.database))


def test_blocks_wait_in_the_outbox_and_are_published_in_order(scenario: AnyScenario, emulator: Emulator) -> None:
    with make_pool(scenario, **AWAY) as pool:
        assert write(pool, scenario, 1).outcome is Outcome.COMMITTED
        with kafka_away(emulator):
            assert [write(pool, scenario, number).outcome for number in range(2, 6)] == [Outcome.STORED] * 4
            assert in_outbox(scenario) == 4
            assert pool.status.is_diverted
            assert pool.status.problem is None
        assert_published(scenario, pool)
        assert write(pool, scenario, 6).outcome is Outcome.COMMITTED
    assert bodies(scenario) == [str(number) for number in range(1, 7)]


def test_a_block_whose_slot_finds_kafka_away_goes_to_the_outbox(scenario: AnyScenario, emulator: Emulator) -> None:
    with make_pool(scenario, **AWAY) as pool:
        assert not pool.status.is_diverted
        write(pool, scenario, 1)
        with pool.transaction() as tx:
            put(tx, scenario, 2)
            emulator.crash_node(0)
        assert tx.outcome is Outcome.STORED
        emulator.start_node(0)
        assert_published(scenario, pool)
    assert bodies(scenario) == ["1", "2"]


def test_a_pool_that_is_never_idle_goes_back_to_kafka(scenario: AnyScenario, emulator: Emulator) -> None:
    with make_pool(scenario, max_writers=1, **AWAY) as pool:
        with kafka_away(emulator):
            assert write(pool, scenario, 0).outcome is Outcome.STORED
        number = 1
        until_s = time.monotonic() + 60
        while write(pool, scenario, number).outcome is Outcome.STORED:
            assert time.monotonic() < until_s, "blocks still go to the outbox"
            number += 1
        assert bodies(scenario) == [str(each) for each in range(number + 1)]


def test_a_block_of_another_process_follows_those_that_wait(scenario: AnyScenario, emulator: Emulator) -> None:
    """The block's process has never seen Kafka away; the block finds the diversion when it has locked its rows."""
    with make_pool(scenario, **AWAY) as first, make_pool(scenario, **AWAY) as second:
        for number, pool in enumerate((first, second)):
            write(pool, scenario, number)
        assert second.pool.outbox is not None
        second.pool.outbox.writes.is_diverted = False
        with kafka_away(emulator):
            assert write(first, scenario, 2).outcome is Outcome.STORED
        second.pool.availability.note_present()
        with diverted_for_ever(first), diverted_for_ever(second):
            assert write(second, scenario, 3).outcome is Outcome.STORED
        assert_published(scenario, first)
    assert bodies(scenario) == ["0", "1", "2", "3"]


@contextmanager
def diverted_for_ever(pool: AnyPool) -> Iterator[None]:
    """Keep the background of a pool from publishing."""
    assert pool.pool.outbox is not None
    publisher: Any = pool.pool.outbox
    with mock.patch.object(publisher, "_lead", return_value=False), mock.patch.object(publisher, "_coordinator", None):
        yield


@contextmanager
def locking_the_diversion(scenario: AnyScenario, how: str) -> Iterator[None]:
    """Lock the row that diverts the pool, as a process that has frozen before its COMMIT."""
    if scenario.database.url.get_backend_name() == "sqlite":
        pytest.skip("SQLite has one lock, which blocks wait for before that")
    select = sa.text(f"SELECT seq FROM kafka_transaction_outbox WHERE transactional_id = :id AND seq = 0 {how}")
    with scenario.database.aside.begin() as connection:
        assert connection.scalar(select, {"id": outbox_prefix_of(prefix_of(scenario))}) == 0
        yield


def waiting_briefly(pool: AnyPool) -> AbstractContextManager[Any]:
    assert pool.pool.outbox is not None
    return mock.patch.object(pool.pool.outbox.writes, "_lock_timeout_ms", 500)


def test_a_block_that_cannot_begin_or_join_the_diversion_is_refused(scenario: AnyScenario, emulator: Emulator) -> None:
    with make_pool(scenario, **AWAY) as pool:
        write(pool, scenario, 1)
        with kafka_away(emulator):
            for number in (2, 3):
                with locking_the_diversion(scenario, "FOR UPDATE"), waiting_briefly(pool):
                    with pytest.raises(RowLockTimeoutError, match="diverts the pool"), pool.transaction() as tx:
                        put(tx, scenario, number)
                    assert tx.outcome is Outcome.ROLLED_BACK
                assert write(pool, scenario, number).outcome is Outcome.STORED
        assert_published(scenario, pool)
    assert bodies(scenario) == ["1", "2", "3"]


def test_a_frozen_block_does_not_stop_the_publisher(
    scenario: AnyScenario, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frozen block keeps the diversion from ending; other blocks are published, and asked again to wait."""
    monkeypatch.setattr(publishing, "_SECONDS_TO_ASK_AGAIN", 0.0)

    def asked() -> int:
        query = sa.text("SELECT stored_at_ms FROM kafka_transaction_outbox WHERE transactional_id = :id AND seq = -1")
        with scenario.database.aside.connect() as connection:
            return int(connection.scalar(query, {"id": outbox_prefix_of(prefix_of(scenario))}) or 0)

    on_postgres = scenario.database.url.get_backend_name() == "postgresql"
    shared = "FOR SHARE" if on_postgres else "LOCK IN SHARE MODE"
    with make_pool(scenario, **AWAY) as pool, ExitStack() as frozen:
        write(pool, scenario, 1)
        with kafka_away(emulator):
            assert write(pool, scenario, 2).outcome is Outcome.STORED
            frozen.enter_context(locking_the_diversion(scenario, shared))
        until(lambda: bool(asked()))
        assert write(pool, scenario, 3).outcome is Outcome.STORED
        until(lambda: bodies(scenario) == ["1", "2", "3"])
        number = asked()
        until(lambda: asked() != number)
        assert pool.status.is_diverted
        frozen.close()
        assert_published(scenario, pool)


def test_consumed_offsets_do_not_go_to_the_outbox(scenario: AnyScenario, emulator: Emulator) -> None:
    with make_pool(scenario, **AWAY) as pool:
        write(pool, scenario, 1)
        with kafka_away(emulator):
            write(pool, scenario, 2)
        with diverted_for_ever(pool), pytest.raises(StoredBlocksError, match="consumed offsets"):
            with pool.transaction() as tx:
                put(tx, scenario, 3)
                tx.send_offsets({(scenario.topic, 0): 1}, "group")
        assert_published(scenario, pool)


def test_the_sessions_of_an_application(scenario: AnyScenario, emulator: Emulator) -> None:
    with make_pool(scenario, **AWAY) as pool:
        if not isinstance(pool, DualWriter) or scenario.database.url.get_backend_name() == "sqlite":
            pytest.skip("only SQLAlchemy has Sessions, and on SQLite no pool leases an id while one writes")
        sessions = sessionmaker(scenario.database.engine)
        dual_write_sessions(sessions, pool)

        def put_in_session(number: int) -> Outcome | None:
            with sessions() as session:
                session.add(Event(number))
                send(session, scenario.topic, key="k", value=str(number))
                found = current_dual_write(session)
                session.commit()
            return found.outcome

        assert put_in_session(1) is Outcome.COMMITTED
        with kafka_away(emulator):
            assert [put_in_session(number) for number in (2, 3)] == [Outcome.STORED] * 2
        assert_published(scenario, pool)
        assert put_in_session(4) is Outcome.COMMITTED
    assert bodies(scenario) == ["1", "2", "3", "4"]


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
