"""`dualwrite recover`: after SIGKILLs at each pause point, from other processes, two at once."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Emulator
from tests.cli.conftest import Call, assert_one_line, ended, process
from tests.crash.scenario import Predecessor, Scenario
from tests.recovery.world import left_open
from tests.support.databases import Database


@pytest.fixture
def scenario(database: Database, emulator: Emulator) -> Scenario:
    return Scenario(database, emulator)


def options(scenario: Scenario, *more: object) -> list[object]:
    url = scenario.database.url.render_as_string(hide_password=False)
    return ["recover", "--bootstrap-server", scenario.emulator.bootstrap_servers, "--database", url, *more]


def test_dry_then_apply_then_nothing(scenario: Scenario, call: Call) -> None:
    scenario.leave_behind(Predecessor.COMMITTED)
    select = ("--transactional-id", scenario.transactional_id, "--min-age", 0)
    dry = call(*options(scenario, *select))
    assert dry.code == 1
    assert dry.out.splitlines()[0].split()[:3] == ["TransactionalId", "Action", "Done"]
    assert dry.out.splitlines()[1].split()[:3] == [scenario.transactional_id, "commit", "no"]
    assert dry.out.splitlines()[-1].startswith(
        "1 to resolve, 0 left, 0 waiting, 0 settled; nothing was changed: --apply"
    )
    applied = call(*options(scenario, *select, "--apply"))
    assert (applied.code, applied.out.splitlines()[-1]) == (0, "1 resolved, 0 left, 0 waiting, 0 settled")
    again = call(*options(scenario, *select, "--apply", "--json"))
    none_of: dict[str, list[Any]] = {"unseen": [], "searched": [], "found": [], "taken_out": [], "forgotten": []}
    assert again.document == {"applied": True, "clean": True, "settled": 1, **none_of}
    nothing = call(*options(scenario, *select))
    assert (nothing.code, nothing.out.splitlines()[-1]) == (0, "0 to resolve, 0 left, 0 waiting, 1 settled")
    scenario.assert_both_sides_agree()


def test_an_orphan_without_a_row_is_left_until_it_is_named(scenario: Scenario, call: Call) -> None:
    left_open(scenario.emulator, "orphan", scenario.topic)
    young = call(*options(scenario, "--prefix", "orphan", "--apply"))
    assert (young.code, young.out.splitlines()[-1]) == (0, "0 resolved, 0 left, 1 waiting, 0 settled")
    assert "young: open for less than --min-age" in young.out
    left = call(*options(scenario, "--prefix", "orphan", "--min-age", 0, "--apply"))
    assert (left.code, left.out.splitlines()[-1]) == (1, "0 resolved, 1 left, 0 waiting, 0 settled")
    assert "no-row: " in left.out
    assert "--force-terminate ID --apply" in left.out
    named = call(*options(scenario, "--force-terminate", "orphan", "--min-age", 0, "--apply", "--json"))
    assert (named.code, named.document["found"][0]["action"]) == (0, "terminate")
    assert call(*options(scenario, "--prefix", "orphan", "--min-age", 0)).code == 0


def test_a_failed_round_is_reported_and_the_next_follows(scenario: Scenario) -> None:
    select = ("--all", "--min-age", 0, "--apply", "--interval", 0.05)
    with sa.create_engine(scenario.database.url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.text("ALTER TABLE kafka_transaction_state RENAME TO away"))
    running = process(*options(scenario, *select, "--json"))
    try:
        assert running.stdout is not None
        assert running.stderr is not None
        assert "kafka_transaction_state does not exist" in running.stderr.readline()
        with sa.create_engine(scenario.database.url, poolclass=sa.NullPool).begin() as connection:
            connection.execute(sa.text("ALTER TABLE away RENAME TO kafka_transaction_state"))
        assert json.loads(running.stdout.readline())["clean"]
    finally:
        running.send_signal(signal.SIGINT)
        done = ended(running)
    assert done.code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --prefix, --transactional-id, or --all"),
        (("--prefix", ""), "use --all"),
        (("--all", "--prefix", "a"), "--all and --prefix cannot be used together"),
        (("--all", "--once", "--interval", "1"), "--once and --interval cannot be used together"),
        (("--force-terminate", "a", "--interval", "1"), "use them without --interval"),
        (("--acknowledge-lost", "a", "--interval", "1"), "use them without --interval"),
        (("--all", "--interval", "0"), "--interval"),
        (("--all", "--min-age", "-1"), "--min-age"),
        (("--all", "surplus"), "surplus"),
        (("--all", "--aply"), "--aply"),
    ],
    ids=" ".join,
)
def test_wrong_usage(call: Call, arguments: tuple[str, ...], said: str) -> None:
    needed = ("--bootstrap-server", "127.0.0.1:1", "--database", "sqlite:///nowhere.db")
    assert_one_line(call("recover", *needed, *arguments), 2, said)


def test_an_unreachable_cluster_or_database(call: Call, scenario: Scenario) -> None:
    url = scenario.database.url.render_as_string(hide_password=False)
    away = call("recover", "--bootstrap-server", "127.0.0.1:1", "--database", url, "--all", "--timeout-ms", 200)
    assert_one_line(away, 2, "--bootstrap-server")
    servers = scenario.emulator.bootstrap_servers
    secret = {"DUALWRITE_DATABASE_URL": "postgresql+psycopg://user:sesame@127.0.0.1:1/shop"}
    away = call("recover", "--bootstrap-server", servers, "--all", env=secret)
    assert_one_line(away, 2, "DUALWRITE_DATABASE_URL")
    assert "sesame" not in away.err
    with scenario.database.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE kafka_transaction_state"))
    assert_one_line(call(*options(scenario, "--all")), 1, "dualwrite init-db")
