"""The pages of Spark list what the code has, and the commands that messages name exist."""

from __future__ import annotations

import re
import shlex
from typing import Any

import click
import pytest

from dualwrite.cli.root import cli
from spark_sink import commands, errors, options
from spark_sink.reading import options as source_options
from spark_sink.store.attempt_states import AttemptStatus
from spark_sink.store.tables import BatchStatus, StoreTables
from tests.test_docs import DOCS, rows

OPTIONS = (DOCS / "spark-options.md").read_text()
STORE = (DOCS / "spark-store.md").read_text()

DEFAULTS = {
    "includeHeaders": "false",
    "commitStore.createTables": "true",
    "txn.mode": options.TxnMode.AUTO.value,
    "txn.timeoutMs": str(
        options.parse({"sinkId": "s", "kafka.bootstrap.servers": "h:1", "commitStore.urlEnv": "U"}).txn_timeout_ms
    ),
    "onNewCheckpoint": options.OnNewCheckpoint.FAIL.value,
    "requireDigest": options.RequireDigest.REPLAY.value,
    "onOrphans": options.OnOrphans.WARN.value,
    "dual.mode": options.DualMode.INSERT.value,
    "commit.parallelism": str(options.DEFAULT_COMMIT_PARALLELISM),
    "commit.retries": str(options.DEFAULT_COMMIT_RETRIES),
    "store.retentionBatches": str(options.DEFAULT_RETENTION_BATCHES),
}


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_option_of_the_sink_is_in_the_table_with_its_default() -> None:
    table = {names(option)[0]: default for option, default, _ in rows("spark-options.md", "Options")}
    assert set(table) == {*options.NAMES, "kafka.*"}
    assert {name: names(default) for name, default in table.items() if name in DEFAULTS} == {
        name: [default] for name, default in DEFAULTS.items()
    }


def test_every_option_of_the_source_is_on_the_page() -> None:
    _, _, section = OPTIONS.partition("\n## Options of the source\n")
    section = section.partition("\n## ")[0]
    assert [name for name in source_options.NAMES if f"`{name}`" not in section] == []


def test_every_error_is_on_the_page_and_no_other() -> None:
    listed = {names(error)[0] for error, _, _ in rows("spark-options.md", "Errors")}
    known = {
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.SinkError)
    }
    assert listed <= known
    assert [name for name in known if f"`{name}`" not in OPTIONS + STORE] == []


def test_the_tables_and_statuses_of_the_store_are_on_the_page() -> None:
    table = {names(name)[0]: " ".join(cells) for name, *cells in rows("spark-store.md", "The commit store")}
    assert set(table) == {each.name for each in StoreTables(None).metadata.sorted_tables}
    assert set(names(table["dw_batch"])) == {str(status) for status in BatchStatus}
    assert set(names(table["dw_attempt"])) >= {str(status) for status in AttemptStatus}


JOB = "versioned job:the daily one; `really`"
"""An id that a shell would not leave alone."""


def parsed(command: str) -> dict[str, Any]:
    """Return the parameters of a command that a message shows between backquotes."""
    assert (command[0], command[-1]) == ("`", "`")
    program, *arguments = shlex.split(command[1:-1])
    assert program == "dualwrite"
    found: click.Command = cli
    context = click.Context(cli)
    while isinstance(found, click.Group):
        inner = found.get_command(context, arguments.pop(0))
        assert inner is not None
        found = inner
    return found.make_context(None, arguments).params


@pytest.fixture(autouse=True)
def _reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALWRITE_BOOTSTRAP_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("DUALWRITE_DATABASE_URL", "sqlite:///store.db")


@pytest.mark.parametrize("schema", [None, "my schema"])
def test_each_is_a_command_with_these_arguments(schema: str | None) -> None:
    forgotten = parsed(commands.forget_cluster("orders", JOB, 7, "gone", schema=schema))
    assert forgotten["gone"] == "gone"
    acknowledged = parsed(commands.acknowledge_lost("orders", JOB, 7, schema=schema))
    assert {name: acknowledged[name] for name in ("sink_id", "query_id", "batch_id", "schema")} == {
        "sink_id": "orders",
        "query_id": JOB,
        "batch_id": 7,
        "schema": schema,
    }
    recovered = parsed(commands.recover("orders", schema=schema))
    assert (recovered["apply"], recovered["sink_ids"], recovered["schema"]) == (True, ("orders",), schema)
    assert parsed(commands.init_store(schema=schema))["schema"] == schema
