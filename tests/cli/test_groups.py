"""Options before or behind the command's name, `--help` that fits, completion, and exit codes as documented."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.cli.root import cli
from tests.cli.conftest import Call, Ended, ended, process

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def paths(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        found = group.get_command(ctx, name)
        yield (*before, name)
        if isinstance(found, click.Group):
            yield from paths(found, (*before, name))


COMMANDS = [(), *paths(cli)]


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "transactions", "list", "--bootstrap-server", "SERVERS"),
        ("--bootstrap-server", "SERVERS", "--json", "transactions", "list"),
        ("--bootstrap-server=SERVERS", "transactions", "--json", "list"),
        ("transactions", "--json", "--bootstrap-server", "SERVERS", "list"),
        ("transactions", "list", "--json", "--bootstrap-server", "SERVERS"),
        ("-v", "transactions", "-v", "list", "-v", "--json", "--bootstrap-server", "SERVERS"),
    ],
    ids=" ".join,
)
def test_an_option_may_stand_anywhere(call: Call, words: tuple[str, ...]) -> None:
    with Emulator() as broker:
        done = call(*(word.replace("SERVERS", broker.bootstrap_servers) for word in words))
    assert (done.code, done.document) == (0, [])


def test_a_value_may_be_the_name_of_a_command(call: Call) -> None:
    with Emulator() as broker:
        done = call("--prefix", "top", "--json", "top", "--bootstrap-server", broker.bootstrap_servers)
    assert (done.code, done.document) == (0, [])


def test_an_option_of_another_command_is_refused(call: Call) -> None:
    done = call("--take-out", "a:1", "top")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "No such option '--take-out'" in done.err


def test_verbose_behind_the_command_logs_as_before_it() -> None:
    with socket.socket() as closed:  # bound, and not listening
        closed.bind(("127.0.0.1", 0))
        to = ("--bootstrap-server", f"127.0.0.1:{closed.getsockname()[1]}", "--timeout-ms", "300")
        ways = (("-v", "top", *to), ("top", *to, "-v"), ("top", *to))
        logged = [" INFO dualwrite." in ended(process(*words)).err for words in ways]
    assert logged == [True, True, False]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "dualwrite")
def test_help_fits_80_columns_and_explains_every_option(call: Call, words: tuple[str, ...]) -> None:
    done = call(*words, "--help", env={"COLUMNS": "80"})
    assert done.code == 0
    assert [line for line in done.out.splitlines() if len(line) > 80] == []
    assert not re.search(r"INTEGER|FLOAT| RANGE|\bTEXT\b(?!$)", done.out.replace("--prefix TEXT", "")), done.out
    command: click.Command | None = cli
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    assert command.help
    for param in command.get_params(click.Context(command)):
        assert isinstance(param, click.Option)
        assert param.help, param.name


def completed(words: str, shell: str = "bash") -> Ended:
    env = {"_DUALWRITE_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    return ended(process(env=env))


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dualwrite transactions des", ["describe", "describe-producers"]),
        ("dualwrite broker --sch", ["--schema-registry"]),
    ],
)
def test_commands_and_options_are_completed(words: str, offered: list[str]) -> None:
    done = completed(words)
    assert done.code == 0
    assert [line.partition(",")[2] for line in done.out.splitlines()] == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_page_says_how_to_complete_in_each_shell(shell: str) -> None:
    assert f"_DUALWRITE_COMPLETE={shell}_source dualwrite" in PAGE.read_text()
    script = ended(process(env={"_DUALWRITE_COMPLETE": f"{shell}_source"}))
    assert script.code == 0
    assert f"_DUALWRITE_COMPLETE={shell}_complete" in script.out.replace('"', "")


def test_the_page_has_the_exit_codes_of_help(call: Call) -> None:
    shown = " ".join(call("--help").out.split())
    (codes,) = re.findall(r"Exit codes: (.*?)\. ", shown)
    table = re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert re.findall(r"\b(\d+) ", codes) == table == ["0", "1", "2", "130"]
