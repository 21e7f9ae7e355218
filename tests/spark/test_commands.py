"""The commands that messages tell an operator to run exist, with these arguments."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest

from dualwrite.cli.root import cli
from spark_sink import commands

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
