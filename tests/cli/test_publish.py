"""`dualwrite publish`: the publisher of outboxes as a process of its own."""

from __future__ import annotations

import signal
import subprocess

import pytest

from dualwrite import Outbox
from dualwrite.broker_emulator import Emulator
from tests.cli.conftest import Call, assert_one_line, ended, process
from tests.crash.scenario import Scenario
from tests.recipes.pools import make_pool, prefix_of, write
from tests.support.conditions import until
from tests.support.databases import Database, unique
from tests.support.topics import read_topic


@pytest.fixture
def scenario(database: Database, emulator: Emulator) -> Scenario:
    return Scenario(database, emulator, transactional_id=f"{unique('pool')}-0")


def options(scenario: Scenario, *more: object) -> list[object]:
    url = scenario.database.url.render_as_string(hide_password=False)
    where = ["--bootstrap-server", scenario.emulator.bootstrap_servers, "--database", url]
    return ["publish", *where, "--prefix", prefix_of(scenario), *more]


def line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def bodies(scenario: Scenario) -> list[str]:
    return [str(value) for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]


def test_publish_sends_waiting_and_new_blocks_until_stopped(scenario: Scenario) -> None:
    with make_pool(scenario, delivery=Outbox(publishes=False)) as pool:
        write(pool, scenario, 1)
        running = process(*options(scenario))
        try:
            assert line(running) == f"{prefix_of(scenario)}: published by this process"
            until(lambda: bodies(scenario) == ["1"])
            write(pool, scenario, 2)
            until(lambda: bodies(scenario) == ["1", "2"])
        finally:
            running.send_signal(signal.SIGTERM)
            done = ended(running)
    assert done.code == 0


# ---- prepared statements --------------------------------------------------------------------------------------------

_NOTE_PREPARED = """
    CREATE TABLE noted (statement text);
    CREATE FUNCTION note_prepared() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO noted SELECT statement FROM pg_prepared_statements; RETURN NULL; END $$;
    CREATE TRIGGER note_prepared AFTER DELETE ON kafka_transaction_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION note_prepared()
"""
"""Notes the statements that the publisher's session has prepared."""


def execute(scenario: Scenario, sql: str) -> list[str]:
    with scenario.database.aside.begin() as connection:
        result = connection.exec_driver_sql(sql)
        return [str(row[0]) for row in result] if result.returns_rows else []


@pytest.mark.parametrize(
    ("more", "deletes_by_prepared"), [((), False), (("--prepare-threshold", 0), True)], ids=["without", "with"]
)
def test_publish_prepares_statements_only_when_told_to(
    scenario: Scenario, more: tuple[object, ...], deletes_by_prepared: bool
) -> None:
    with make_pool(scenario, delivery=Outbox(publishes=False)) as pool:
        write(pool, scenario, 1)
        execute(scenario, _NOTE_PREPARED)
        running = process(*options(scenario, *more))
        try:
            for number in (2, 3):
                until(lambda: len(bodies(scenario)) == number - 1)  # noqa: B023 - it is called in this round
                write(pool, scenario, number)
            until(lambda: bodies(scenario) == ["1", "2", "3"])
        finally:
            running.send_signal(signal.SIGTERM)
            assert ended(running).code == 0
    prepared = execute(scenario, "SELECT statement FROM noted")
    assert any("DELETE FROM" in statement for statement in prepared) is deletes_by_prepared
    assert bool(prepared) is deletes_by_prepared


def test_tables_that_are_missing(call: Call, scenario: Scenario) -> None:
    assert_one_line(call(*options(scenario)), 1, "dualwrite init-db")


def test_wrong_usage(call: Call, scenario: Scenario) -> None:
    assert_one_line(call(*options(scenario)[:-2]), 2, "--prefix")
    assert_one_line(call(*options(scenario, "--prefix", "a-outbox")), 2, "must not end with '-outbox'")
    assert_one_line(call(*options(scenario, "--poll-ms", 0)), 2, "--poll-ms")
    assert_one_line(call(*options(scenario, "--linger-ms", -1)), 2, "--linger-ms")
