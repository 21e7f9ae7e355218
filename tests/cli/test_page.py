"""docs/cli.md and the command say the same."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.cli.root import cli
from dualwrite.recipes.recovery.service import Action
from spark_sink.driver.recovery import Action as SparkAction
from tests.cli.conftest import Call
from tests.crash.scenario import Predecessor, Scenario
from tests.support.databases import Database, SqliteDatabase
from tests.test_docs import ROOT, examples

PAGE = (ROOT / "docs" / "cli.md").read_text()
GROUPS = ["dualwrite spark", "dualwrite transactions"]
COMMON = ["--bootstrap-server", "--command-config", "--timeout-ms", "--database", "--json", "--verbose"]


def commands(group: click.Group, path: str = "dualwrite") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands(cli))


def section(path: str) -> str:
    found = re.search(rf"^#+ {re.escape(path)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/cli.md has no section {path!r}"
    return re.sub(r"^```.*?^```", "", found[1], flags=re.MULTILINE | re.DOTALL)


def options_on_page(path: str) -> set[str]:
    cells = re.findall(r"^\| (`--.*?) \|", section(path), re.MULTILINE)
    return {option for cell in cells for option in re.findall(r"`(--[\w-]+)`", cell)}


def test_the_page_has_a_section_for_each_command_and_no_other() -> None:
    assert set(re.findall(r"^#+ (dualwrite .*)$", PAGE, re.MULTILINE)) == {*COMMANDS, *GROUPS}


@pytest.mark.parametrize("path", [path for path in COMMANDS if path != "dualwrite broker"])
def test_the_options_of_a_command(path: str) -> None:
    options = {
        name
        for option in COMMANDS[path].params
        for name in [*option.opts, *option.secondary_opts]
        if name not in (*COMMON, "-v")
    }
    assert options_on_page(path) == options


def test_the_options_of_the_broker() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dualwrite", "broker", "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert options_on_page("dualwrite broker") == set(re.findall(r"^  (--[\w-]+)", done.stdout, re.MULTILINE))


def test_the_common_options() -> None:
    assert options_on_page("Ways to Kafka and to the database") == set(COMMON)


def test_every_action_is_on_the_page() -> None:
    named = re.findall(r"^\| `([a-z][\w-]+)` \|", section("dualwrite recover"), re.MULTILINE)
    assert set(named) == {str(action) for action in Action if action is not Action.NOTHING}


def test_every_action_on_spark_sinks_is_on_the_page() -> None:
    named = re.findall(r"^\| `([a-z][\w-]+)` \|", section("dualwrite spark recover"), re.MULTILINE)
    assert set(named) == {str(action) for action in SparkAction}


def test_the_library_on_the_page(database: Database, emulator: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = Scenario(database, emulator, transactional_id="orders-1")
    scenario.leave_behind(Predecessor.COMMITTED)
    code = examples(ROOT / "docs" / "cli.md")[0]
    code = code.replace("127.0.0.1:9092", emulator.bootstrap_servers).replace('"orders-")', '"orders-", min_age_ms=0)')
    namespace: dict[str, object] = {"engine": sa.create_engine(database.url)}
    exec(compile(code, "cli.md", "exec"), namespace)
    assert capsys.readouterr().out == ""
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("dualwrite recover", ("--all",)),
        ("dualwrite doctor", ()),
        ("dualwrite top", ()),
        ("dualwrite transactions list", ()),
        ("dualwrite transactions describe", ("--transactional-id", "{kafka_id}")),
        ("dualwrite transactions describe-producers", ("--topic", "{topic}", "--partition", "0")),
        ("dualwrite transactions force-terminate", ("--transactional-id", "{kafka_id}")),
    ],
)
def test_every_key_is_on_the_page(
    call: Call, emulator: Emulator, tmp_path_factory: pytest.TempPathFactory, path: str, arguments: tuple[str, ...]
) -> None:
    database = SqliteDatabase(tmp_path_factory.mktemp("db"))
    scenario = Scenario(database, emulator, transactional_id="orders-1")
    scenario.leave_behind(Predecessor.COMMITTED)
    reach = {
        "DUALWRITE_BOOTSTRAP_SERVER": emulator.bootstrap_servers,
        "DUALWRITE_DATABASE_URL": str(database.url),
    }
    given = [each.format(topic=scenario.topic, kafka_id=scenario.kafka_id) for each in arguments]
    document = call(*path.split()[1:], *given, "--json", env=reach).document
    assert document
    on_page = set(re.findall(r"`(\w+)`", section(path)))
    assert keys(document) - {"found"} <= on_page | keys_of_described(path)


def keys(document: object) -> set[str]:
    if isinstance(document, list):
        return {key for each in document for key in keys(each)}
    if isinstance(document, dict):
        return {*document, *(key for value in document.values() for key in keys(value))}
    return set()


def keys_of_described(path: str) -> set[str]:
    """Return the keys of describe, which are also those of `found` in force-terminate."""
    if path != "dualwrite transactions force-terminate":
        return set()
    return set(re.findall(r"`(\w+)`", section("dualwrite transactions describe")))
