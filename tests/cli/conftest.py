"""Fixtures that run the command in this process or in its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from dualwrite.cli.root import cli

VARIABLES = ("DUALWRITE_BOOTSTRAP_SERVER", "DUALWRITE_DATABASE_URL")


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Ended]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Give a function that runs the command in this process."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)

    def invoke(*arguments: object, env: dict[str, str] | None = None) -> Ended:
        done = CliRunner().invoke(cli, list(map(str, arguments)), env=env)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Ended(done.exit_code, done.stdout, done.stderr)

    return invoke


def process(*arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Give a function that runs the command in its own process."""
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.Popen(
        [sys.executable, "-m", "dualwrite", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean | (env or {}),
    )


def ended(started: subprocess.Popen[str]) -> Ended:
    out, err = started.communicate(timeout=60)
    return Ended(started.returncode, out, err)


def assert_one_line(done: Ended, code: int, said: str) -> None:
    """Assert that a command failed with nothing on standard output and one line on standard error."""
    assert (done.code, done.out) == (code, ""), done
    assert done.err.count("\n") == 1, done.err
    assert said in done.err
