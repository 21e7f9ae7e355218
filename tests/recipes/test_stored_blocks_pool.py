"""A pool whose blocks are stored while Kafka is away: on each database, and on psycopg alone."""

from __future__ import annotations

import importlib.resources
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import FencedError
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.leases import slot_of
from dualwrite.recipes.recovery.service import Action, RecoveryService
from dualwrite.recipes.sqlalchemy.redo_table import create_redo_table, kafka_transaction_redo
from dualwrite.recipes.sqlalchemy.state_table import create_state_table
from tests.crash.scenario import AnyScenario
from tests.recipes.pools import AnyPool, LeaseTable, make_pool, prefix_of, write
from tests.recipes.pools import scenario as scenario
from tests.recipes.test_stored_blocks import AWAY, kafka_away
from tests.support.conditions import until
from tests.support.databases import Database, event_bodies
from tests.support.topics import read_topic


def bodies(scenario: AnyScenario) -> list[str]:
    return [str(value) for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]


def stored(scenario: AnyScenario) -> dict[str, int]:
    """How many blocks are stored under which id."""
    query = sa.text("SELECT transactional_id, count(*) FROM kafka_transaction_redo WHERE seq > 0 GROUP BY 1")
    with scenario.database.aside.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(query)}


def assert_published(scenario: AnyScenario, pool: AnyPool) -> None:
    """Wait for the background, and compare both sides; between ids there is no order."""
    until(lambda: not pool.status.stored and not stored(scenario), timeout_s=30)
    assert sorted(bodies(scenario)) == sorted(event_bodies(scenario.database))


def test_one_thread_stores_under_one_id_and_the_background_publishes_in_order(
    scenario: AnyScenario, emulator: Emulator
) -> None:
    with make_pool(scenario, **AWAY) as pool:
        write(pool, scenario, 1)
        with kafka_away(emulator):
            assert [write(pool, scenario, number).outcome for number in range(2, 6)] == [Outcome.STORED] * 4
            assert list(stored(scenario)) == [scenario.transactional_id]
            assert pool.status.stored == (scenario.transactional_id,)
        assert_published(scenario, pool)
        assert write(pool, scenario, 6).outcome is Outcome.COMMITTED
    assert bodies(scenario) == [str(number) for number in range(1, 7)]


def test_many_threads_store_and_everything_is_published_once(scenario: AnyScenario, emulator: Emulator) -> None:
    with make_pool(scenario, max_writers=3, **AWAY) as pool, ThreadPoolExecutor(4) as threads:
        with kafka_away(emulator):
            found = list(threads.map(lambda number: write(pool, scenario, number).outcome, range(24)))
        assert set(found) == {Outcome.STORED}
        assert len(stored(scenario)) <= 3
        assert_published(scenario, pool)
        assert len(bodies(scenario)) == 24


def test_a_pool_that_is_never_idle_publishes_too(scenario: AnyScenario, emulator: Emulator) -> None:
    with make_pool(scenario, max_writers=1, **AWAY) as pool:
        with kafka_away(emulator):
            assert write(pool, scenario, 0).outcome is Outcome.STORED
        number = 1
        until_s = time.monotonic() + 30
        while write(pool, scenario, number).outcome is Outcome.STORED:
            assert time.monotonic() < until_s, "nothing was published"
            number += 1
        assert_published(scenario, pool)


def test_a_pool_of_another_process_publishes_what_a_closed_one_stored(
    scenario: AnyScenario, emulator: Emulator
) -> None:
    with kafka_away(emulator), make_pool(scenario, **AWAY) as gone:
        write(gone, scenario, 1)
    with make_pool(scenario) as pool:
        pool.recover()
        assert stored(scenario) == {}
        write(pool, scenario, 2)
    assert bodies(scenario) == ["1", "2"]


def test_nothing_is_stored_under_an_id_that_was_recovered_and_given_back(
    scenario: AnyScenario, emulator: Emulator
) -> None:
    """As if the process had slept for longer than its lease: no process looks for blocks of a free id."""
    leases = LeaseTable(scenario)
    with make_pool(scenario, **AWAY) as pool:
        write(pool, scenario, 1)
        leases.free()
        with kafka_away(emulator):
            if scenario.database.engine.dialect.name == "sqlite":  # no other slot can be leased in a block there
                with pytest.raises(FencedError, match="has lost the lease"):
                    write(pool, scenario, 2)
            assert write(pool, scenario, 3).outcome is Outcome.STORED
            (slot,) = (slot_of(prefix_of(scenario), each) for each in stored(scenario))
            assert slot is not None
            assert leases.owners()[slot] is not None
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
