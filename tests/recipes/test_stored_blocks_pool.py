"""A pool whose blocks go to an outbox while Kafka is away: on each database, and on psycopg alone."""

from __future__ import annotations

import importlib.resources
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import StoredBlocksError
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.leases import outbox_id_of
from dualwrite.recipes.recovery.service import Action, RecoveryService
from dualwrite.recipes.sqlalchemy.redo_table import create_redo_table, kafka_transaction_redo
from dualwrite.recipes.sqlalchemy.state_table import create_state_table
from tests.crash.scenario import AnyScenario
from tests.recipes.pools import AnyPool, make_pool, prefix_of, put, write
from tests.recipes.pools import scenario as scenario
from tests.recipes.test_stored_blocks import AWAY, kafka_away
from tests.support.conditions import until
from tests.support.databases import Database, event_bodies
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
        write(pool, scenario, 1)
        with pool.transaction() as tx:
            put(tx, scenario, 2)
            emulator.crash_node(0)
        assert tx.outcome is Outcome.STORED
        emulator.start_node(0)
        assert_published(scenario, pool)
    assert bodies(scenario) == ["1", "2"]


def test_many_threads_add_and_everything_is_published_once(scenario: AnyScenario, emulator: Emulator) -> None:
    with make_pool(scenario, max_writers=3, **AWAY) as pool, ThreadPoolExecutor(4) as threads:
        with kafka_away(emulator):
            found = list(threads.map(lambda number: write(pool, scenario, number).outcome, range(24)))
        assert set(found) == {Outcome.STORED}
        assert_published(scenario, pool)
        assert len(bodies(scenario)) == 24


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
    """It has never seen Kafka away, and finds the diversion when it has locked its rows."""
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


def test_a_pool_of_another_process_publishes_what_a_closed_one_left(scenario: AnyScenario, emulator: Emulator) -> None:
    with kafka_away(emulator), make_pool(scenario, **AWAY) as gone:
        write(gone, scenario, 1)
    with make_pool(scenario, **AWAY) as pool:
        pool.recover()
        assert in_outbox(scenario) == 0
        assert write(pool, scenario, 2).outcome is Outcome.COMMITTED
    assert bodies(scenario) == ["1", "2"]


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


@pytest.mark.parametrize("apply", [False, True])
def test_the_recovery_service_lists_and_publishes_them(scenario: AnyScenario, emulator: Emulator, apply: bool) -> None:
    with kafka_away(emulator), make_pool(scenario, **AWAY) as gone:
        write(gone, scenario, 1)
    arguments: dict[str, Any] = {"prefix": prefix_of(scenario), "bootstrap_servers": emulator.bootstrap_servers}
    with RecoveryService(scenario.database.aside, **arguments) as young:
        assert [found.action for found in young.plan().found] == [Action.YOUNG]
    with RecoveryService(scenario.database.aside, min_age_ms=0, **arguments) as service:
        report = service.recover() if apply else service.plan()
    assert [(found.action, found.changed) for found in report.found] == [(Action.PUBLISH, apply)]
    assert bodies(scenario) == (["1"] if apply else [])
    assert report.is_clean is apply


def test_the_sql_file_makes_the_same_table(database: Database) -> None:
    if database.engine.dialect.name == "sqlite":
        pytest.skip("the file names the type of PostgreSQL")
    name = "redo_schema.sql" if database.engine.dialect.name == "postgresql" else "redo_schema_mysql.sql"
    text = (importlib.resources.files("dualwrite.recipes.sql") / name).read_text()
    with database.engine.begin() as connection:
        connection.exec_driver_sql(text.rstrip().rstrip(";"))
    by_hand = columns(database.engine)
    kafka_transaction_redo.drop(database.engine)
    create_state_table(database.engine)
    create_redo_table(database.engine)
    assert columns(database.engine) == by_hand


def columns(engine: sa.Engine) -> dict[str, tuple[str, bool]]:
    found = sa.inspect(engine).get_columns(kafka_transaction_redo.name)
    return {column["name"]: (repr(column["type"]), column["nullable"]) for column in found}
