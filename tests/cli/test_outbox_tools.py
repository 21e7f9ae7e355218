"""The outbox in `dualwrite doctor`, `top` and `recover`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite import Outbox
from dualwrite.admin import HangingTransaction
from dualwrite.broker_emulator import Emulator
from dualwrite.recipes.core.leases import outbox_id_of
from dualwrite.recipes.recovery import service
from dualwrite.recipes.sqlalchemy.outbox_table import kafka_transaction_outbox
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase
from tests.cli.conftest import Call
from tests.cli.test_recover import options
from tests.crash.scenario import Scenario
from tests.recipes.pools import make_pool, prefix_of, write
from tests.support.databases import Database, unique
from tests.support.topics import read_topic

OUTBOX = "kafka_transaction_outbox"


@pytest.fixture
def scenario(database: Database, emulator: Emulator) -> Scenario:
    """Two blocks wait, and no process publishes them."""
    made = Scenario(database, emulator, transactional_id=f"{unique('pool')}-0")
    with make_pool(made, delivery=Outbox(publishes=False)) as pool:
        for number in (1, 2):
            write(pool, made, number)
    return made


def outbox_of(scenario: Scenario) -> str:
    return outbox_id_of(prefix_of(scenario))


def kafka_id_of(scenario: Scenario) -> str:
    return SqlAlchemyDatabase(scenario.database.engine, None).identity(may_make=False).kafka_id(outbox_of(scenario))


def execute(scenario: Scenario, sql: str) -> None:
    with scenario.database.aside.begin() as connection:
        connection.exec_driver_sql(sql)


def select(scenario: Scenario, command: str, *more: object) -> list[object]:
    return [command, *options(scenario, *more)[1:]]


def checks_of(call: Call, scenario: Scenario, *more: object) -> dict[str, dict[str, Any]]:
    document = call(*select(scenario, "doctor", "--json", *more)).document
    return {check["what"]: check for check in document["checks"]}


def test_doctor_counts_waiting_blocks(call: Call, scenario: Scenario) -> None:
    found = checks_of(call, scenario)[OUTBOX]
    assert found["verdict"] == "ok"
    assert "2 blocks (" in found["found"]
    assert "under 1 outbox id, the oldest for " in found["found"]
    execute(scenario, f"UPDATE {OUTBOX} SET stored_at_ms = stored_at_ms - 400000 WHERE seq = 1")
    found = checks_of(call, scenario)[OUTBOX]
    assert (found["verdict"], "the oldest for 40" in found["found"]) == ("warn", True)
    assert "dualwrite top names the outboxes" in found["remedy"]
    execute(scenario, f"UPDATE {OUTBOX} SET stored_at_ms = stored_at_ms - 400000000 WHERE seq = 1")
    found = checks_of(call, scenario)["store-full"]
    assert (found["verdict"], "the oldest for 400" in found["found"]) == ("fail", True)
    assert checks_of(call, scenario, "--max-stored-age", 800_000)[OUTBOX]["verdict"] == "ok"
    execute(scenario, f"UPDATE {OUTBOX} SET seq = -seq")  # taken out
    assert checks_of(call, scenario)[OUTBOX]["found"] == "nothing waits"


def test_doctor_says_which_right_is_missing(call: Call, scenario: Scenario) -> None:
    if scenario.database.url.get_backend_name() != "postgresql":
        pytest.skip("doctor asks PostgreSQL alone for rights")
    assert checks_of(call, scenario)[f"rights on {OUTBOX}"]["found"] == "SELECT, INSERT, UPDATE, DELETE"
    execute(scenario, f"REVOKE DELETE ON {OUTBOX} FROM CURRENT_USER")
    found = checks_of(call, scenario)[f"rights on {OUTBOX}"]
    assert (found["verdict"], found["found"]) == ("fail", "no DELETE")
    execute(scenario, f"REVOKE SELECT ON {OUTBOX} FROM CURRENT_USER")
    assert checks_of(call, scenario)[OUTBOX]["found"].startswith("present, but not readable: ")


def test_recover_publishes_the_outbox(call: Call, scenario: Scenario) -> None:
    which = ("--prefix", f"{prefix_of(scenario)}-", "--min-age", 0, "--json")
    dry = call(*options(scenario, *which))
    (found,) = dry.document["found"]
    assert (dry.code, found["action"], found["changed"]) == (1, "publish", False)
    assert found["kafka_transactional_id"] == kafka_id_of(scenario)
    done = call(*options(scenario, *which, "--apply"))
    (found,) = done.document["found"]
    assert (done.code, found["action"], found["changed"]) == (0, "publish", True)
    assert [value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)] == ["1", "2"]


@pytest.fixture
def not_proven(scenario: Scenario) -> Scenario:
    """The first block was decided, and nothing shows any more how that has ended."""
    of = f"WHERE transactional_id = '{outbox_of(scenario)}'"
    execute(scenario, f"UPDATE kafka_transaction_state SET prepared_transaction_state = '5:0' {of}")
    with scenario.database.aside.begin() as connection:
        first = connection.scalar(sa.text(f"SELECT min(seq) FROM {OUTBOX}"))
        last_batch = {"seq": 0, "stored_at_ms": 1, "records": b"0", "prepared_transaction_state": "5:0"}
        published: Any = [first] if connection.dialect.name == "postgresql" else f"[{first}]"
        row = {"transactional_id": outbox_of(scenario), "published": published, **last_batch}
        connection.execute(sa.insert(kafka_transaction_outbox), row)
    return scenario


def published(scenario: Scenario) -> list[object]:
    return [value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]


def test_recover_reports_an_unproven_batch(call: Call, not_proven: Scenario) -> None:
    for more in ((), ("--apply",)):
        done = call(*options(not_proven, "--all", "--min-age", 0, *more))
        assert (done.code, "not-proven" in done.out) == (1, True)
        assert "--publish-again ID --apply" in " ".join(done.out.split())
    assert published(not_proven) == []


def test_recover_publishes_a_batch_again_on_order(call: Call, not_proven: Scenario) -> None:
    named = ("--publish-again", outbox_of(not_proven), "--min-age", 0)
    planned = call(*options(not_proven, *named, "--json"))
    (found,) = planned.document["found"]
    assert (planned.code, found["action"], found["changed"], published(not_proven)) == (1, "publish-again", False, [])
    done = call(*options(not_proven, *named, "--apply", "--json"))
    (found,) = done.document["found"]
    assert (done.code, found["action"], found["changed"]) == (0, "publish-again", True)
    assert published(not_proven) == ["1", "2"]
    again = call(*options(not_proven, *named, "--apply"))
    assert (again.code, "nothing was published again" in " ".join(again.out.split())) == (1, True)
    assert published(not_proven) == ["1", "2"]


def test_recover_takes_out_an_unproven_batch_on_order(call: Call, not_proven: Scenario) -> None:
    named = ("--take-out", f"{outbox_of(not_proven)}:0", "--min-age", 0, "--json")
    assert call(*options(not_proven, *named)).document["taken_out"][0]["changed"] is False
    done = call(*options(not_proven, *named, "--apply"))
    (taken,) = done.document["taken_out"]
    assert (taken["changed"], [record["value_text"] for record in taken["records"]]) == (True, ["1"])
    call(*options(not_proven, "--all", "--min-age", 0, "--apply"))
    assert published(not_proven) == ["2"]


@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["text", "json"])
def test_taken_out_records_are_printed_before_the_next_step(
    call: Call, not_proven: Scenario, monkeypatch: pytest.MonkeyPatch, as_json: tuple[str, ...]
) -> None:
    def stop(*_: object, **__: object) -> list[HangingTransaction]:
        raise KeyboardInterrupt

    monkeypatch.setattr(service, "find_hanging", stop)
    named = ("--take-out", f"{outbox_of(not_proven)}:0", "--min-age", 0, "--apply", *as_json)
    done = call(*options(not_proven, *named))
    lines = [json.loads(line) for line in (done.out + done.err).splitlines() if line.startswith("{")]
    assert (done.code, [(line["seq"], line["value_text"]) for line in lines]) == (130, [(0, "1")])


def test_publish_again_cannot_be_used_with_interval(call: Call, scenario: Scenario) -> None:
    done = call(*options(scenario, "--publish-again", outbox_of(scenario), "--interval", 1))
    assert (done.code, "use them without --interval" in " ".join(done.err.split())) == (2, True)
