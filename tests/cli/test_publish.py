"""`dualwrite publish`: the publisher of outboxes as a process of its own."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dualwrite import Outbox
from dualwrite.broker_emulator import Emulator
from dualwrite.partitioners import consistent_partition
from tests.cli.conftest import Call, assert_one_line, ended, process
from tests.crash.scenario import Scenario
from tests.recipes.pools import make_pool, prefix_of, write
from tests.support.conditions import until
from tests.support.databases import Database, unique
from tests.support.topics import read_log, read_topic


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


def test_a_second_publisher_stands_by_until_the_first_ends(scenario: Scenario) -> None:
    published = f"{prefix_of(scenario)}: published by"
    with make_pool(scenario, delivery=Outbox(publishes=False)) as pool:
        write(pool, scenario, 1)
        first = process(*options(scenario))
        assert line(first) == f"{published} this process"
        second = process(*options(scenario))
        assert line(second) == f"{published} another process, or by none yet"
        first.send_signal(signal.SIGTERM)
        assert ended(first).code == 0
        assert line(second) == f"{published} this process"
        write(pool, scenario, 2)
        until(lambda: bodies(scenario) == ["1", "2"])
        second.send_signal(signal.SIGTERM)
        assert ended(second).code == 0


def test_an_unreachable_kafka_is_waited_for(scenario: Scenario) -> None:
    with make_pool(scenario, delivery=Outbox(publishes=False)) as pool:
        write(pool, scenario, 1)
    scenario.emulator.stop_node(0)
    running = process(*options(scenario, "--timeout-ms", 500))
    try:
        assert line(running).startswith(f"{prefix_of(scenario)}: published by")
        scenario.emulator.start_node(0)
        until(lambda: bodies(scenario) == ["1"])
    finally:
        running.send_signal(signal.SIGTERM)
        assert ended(running).code == 0


def test_publish_accepts_blocks_of_a_pool_with_other_settings(scenario: Scenario, tmp_path: Path) -> None:
    """The block names its partitioner, and a record that was accepted is not too large."""
    keys = [f"k{number}" for number in range(20)]
    scenario.emulator.create_topic("wide", 16)
    scenario.emulator.set_config({"max.message.bytes": "8000000"}, topic="wide")
    settings: dict[str, Any] = {"partitioner": "consistent_random", "max_request_size": 8_000_000}
    with make_pool(scenario, delivery=Outbox(publishes=False), **settings) as pool:
        with pool.transaction() as tx:
            for key in keys:
                tx.send("wide", key=key, value="1")
        with pool.transaction() as tx:
            tx.send("wide", key="k0", value="x" * 3_000_000)
        file = tmp_path / "client.properties"
        file.write_text("compression.type=lz4\nmax.request.size=1000\npartitioner=murmur2_random\n")
        running = process(*options(scenario, "--command-config", file))
        try:
            until(lambda: len(read_topic(scenario.emulator.bootstrap_servers, "wide")) == 21)
        finally:
            running.send_signal(signal.SIGTERM)
            assert ended(running).code == 0
    found = {(each.key, each.partition) for each in read_log(scenario.emulator.bootstrap_servers, "wide")}
    assert found == {(key, f"wide-{consistent_partition(key.encode(), 16)}") for key in keys}


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
