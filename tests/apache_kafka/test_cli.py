"""The command against real brokers of each tier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from click.testing import CliRunner

from dualwrite.cli.root import cli
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from tests.support.kafka_ids import kafka_id_of

from .clusters import Cluster, killed_after_prepare
from .conftest import NewName
from .reading import create_topics


def call(*arguments: object) -> tuple[int, Any]:
    done = CliRunner().invoke(cli, [*map(str, arguments), "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_the_doctor_finds_the_tier_and_changes_nothing(cluster: Cluster) -> None:
    code, document = call("doctor", "--bootstrap-server", cluster.bootstrap_servers)
    assert (code, document["healthy"], document["guarantee"]["tier"]) == (0, True, cluster.tier)
    code, listed = call("transactions", "list", "--bootstrap-server", cluster.bootstrap_servers)
    assert "dualwrite-probe" not in {row["transactional_id"] for row in listed}


def test_a_transaction_prepared_by_a_killed_process_is_committed_by_its_row(
    cluster: Cluster, new_name: NewName, tmp_path: Path
) -> None:
    transactional_id, topic = new_name("recovered"), new_name("topic")
    create_topics(cluster.bootstrap_servers, topic)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = sa.create_engine(url)
    kafka_id = kafka_id_of(engine, transactional_id)
    state = killed_after_prepare("Producer", cluster.settings(kafka_id), topic, b"1")
    assert state != PreparedTxnState()
    with engine.begin() as connection:
        values = {"transactional_id": transactional_id, "prepared_transaction_state": str(state)}
        connection.execute(kafka_transaction_state.insert().values(values))
    options = ("recover", "--bootstrap-server", cluster.bootstrap_servers, "--database", url)
    select = ("--transactional-id", transactional_id, "--min-age", 0)
    code, plan = call(*options, *select)
    assert (code, plan["found"][0]["action"]) == (1, "commit")
    code, done = call(*options, *select, "--apply")
    assert (code, [(each["action"], each["changed"]) for each in done["found"]]) == (0, [("commit", True)])
    cluster.wait_until_settled(kafka_id)
    assert call(*options, *select, "--apply")[1]["found"] == []
