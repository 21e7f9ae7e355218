"""`dualwrite recover --take-out`: an operator takes out a stored block that Kafka refuses."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import Emulator
from dualwrite.delivery import Outbox
from dualwrite.recipes.core.leases import outbox_id_of
from dualwrite.recipes.core.pause_points import PausePoint
from tests.cli.conftest import Call, assert_one_line
from tests.cli.test_recover import options
from tests.crash.scenario import AtPoint, Scenario, event_texts
from tests.recipes.outboxes import waiting
from tests.recipes.pools import make_pool, write
from tests.support.databases import Database, event_bodies, unique
from tests.support.kafka_ids import kafka_id_of
from tests.support.topics import read_topic


@pytest.fixture
def scenario(database: Database, emulator: Emulator) -> Scenario:
    """Two blocks wait; the first is for a topic that refuses them. The id is that of the outbox."""
    prefix = unique("pool")
    made = Scenario(database, emulator, transactional_id=f"{prefix}-0")
    own = made.topic
    with make_pool(made, delivery=Outbox(publishes=False)) as pool:
        made.topic = "refusing"
        write(pool, made, 1)
        made.topic = own
        write(pool, made, 2)
    made.transactional_id = outbox_id_of(prefix)
    emulator.create_topic("refusing", 1)
    emulator.set_config({"max.message.bytes": "10"}, topic="refusing")
    return made


def select(scenario: Scenario, *more: object) -> list[object]:
    return options(scenario, "--transactional-id", scenario.transactional_id, "--min-age", 0, *more)


def values(scenario: Scenario) -> list[str]:
    return [str(value) for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]


def test_a_refused_block_is_named_and_taken_out_and_the_next_is_published(scenario: Scenario, call: Call) -> None:
    named = call(*select(scenario, "--apply", "--json"))
    (found,) = named.document["found"]
    assert (named.code, found["action"], found["changed"], found["left"]) == (1, "refused", False, True)
    assert f"--take-out {scenario.transactional_id}:1 --apply" in found["error"]

    block = ("--take-out", f"{scenario.transactional_id}:1")
    dry = call(*select(scenario, *block, "--json"))
    assert dry.code == 1
    (planned,) = dry.document["taken_out"]
    assert (planned["transactional_id"], planned["seq"], planned["changed"]) == (scenario.transactional_id, 1, False)
    assert waiting(scenario) == 2

    done = call(*select(scenario, *block, "--apply", "--json"))
    (taken,) = done.document["taken_out"]
    assert (done.code, taken["changed"]) == (0, True)
    assert [base64.b64decode(record["value"]).decode() for record in taken["records"]] == ["1"]
    assert {record["topic"] for record in taken["records"]} == {"refusing"}
    assert waiting(scenario) == 0
    assert values(scenario) == ["2"]


def test_the_records_are_printed(scenario: Scenario, call: Call) -> None:
    done = call(*select(scenario, "--take-out", f"{scenario.transactional_id}:1", "--apply"))
    lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert [line["value_text"] for line in lines] == ["1"]
    assert done.code == 0


def test_the_records_are_written_to_a_file(scenario: Scenario, call: Call, tmp_path: Path) -> None:
    file = tmp_path / "taken.jsonl"
    block = ("--take-out", f"{scenario.transactional_id}:1", "--take-out-to", file)
    assert "would be taken out" in call(*select(scenario, *block)).out
    assert not file.exists()
    unwritable = call(*select(scenario, *block[:3], tmp_path / "missing" / "taken.jsonl", "--apply"))
    assert (unwritable.code, "No such file or directory" in unwritable.err, waiting(scenario)) == (2, True, 2)
    done = call(*select(scenario, *block, "--apply"))
    assert (done.code, f"its records are in {file}" in done.out) == (0, True)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["seq"], line["topic"], line["value_text"]) for line in lines] == [(1, "refusing", "1")]


def test_wrong_usage(scenario: Scenario, call: Call) -> None:
    assert_one_line(call(*select(scenario, "--take-out", "orders-1")), 2, "as in orders-1:3")
    assert_one_line(
        call(*select(scenario, "--take-out", f"{scenario.transactional_id}:2", "--apply")), 1, "the oldest one is 1"
    )
    assert_one_line(call(*select(scenario, "--take-out", "a:1", "--interval", 1)), 2, "without --interval")
    assert waiting(scenario) == 2


def test_each_taken_out_block_is_reported_although_the_next_is_refused(scenario: Scenario, call: Call) -> None:
    blocks = [option for seq in (1, 9) for option in ("--take-out", f"{scenario.transactional_id}:{seq}")]
    done = call(*select(scenario, *blocks, "--apply"))
    assert (done.code, waiting(scenario), "the oldest one is 2" in done.err) == (1, 1, True)
    assert f"block 1 of {scenario.transactional_id} (1 records) is taken out" in done.out


class Died(BaseException):
    """The process is gone."""


def die() -> None:
    raise Died


def test_owed_records_are_named_and_taken_out(
    database: Database, emulator: Emulator, call: Call, tmp_path: Path
) -> None:
    made = Scenario(database, emulator)
    with made.writer() as writer:
        made.write(writer, 1)
    dying = made.writer(AtPoint(PausePoint.AFTER_DATABASE_COMMIT, die))
    with pytest.raises(Died):
        made.write(dying, 2)
    dying.close()
    with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers) as admin:
        admin.force_terminate_transaction(kafka_id_of(database.engine, made.transactional_id))
    emulator.set_config({"max.message.bytes": "10"}, topic=made.topic)

    (found,) = call(*select(made, "--apply", "--json")).document["found"]
    assert (found["action"], found["changed"], found["left"]) == ("refused", False, True)
    assert f"--take-out {made.transactional_id}:0 --apply" in found["error"]

    file = tmp_path / "taken.jsonl"
    owed = ("--take-out", f"{made.transactional_id}:0", "--take-out-to", file)
    dry = call(*select(made, *owed))
    assert (dry.code, f"the records owed under {made.transactional_id}" in dry.out, file.exists()) == (1, True, False)
    done = call(*select(made, *owed, "--apply"))
    assert (done.code, f"its records are in {file}" in done.out) == (0, True)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["seq"], line["value_text"]) for line in lines] == [(0, text) for text in event_texts("2")]

    emulator.set_config({"max.message.bytes": None}, topic=made.topic)
    with made.writer() as writer:
        made.write(writer, 3)
    assert (values(made), event_bodies(database)) == (
        event_texts("1") + event_texts("3"),
        [text for number in "123" for text in event_texts(number)],
    )
