"""`dualwrite`: the group of all commands. A command's module is imported when the command is used."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Final

import click

from dualwrite.cli.failures import OneLineGroup

_COMMANDS: Final = {
    "adopt": "dualwrite.cli.adopt",
    "broker": "dualwrite.cli.broker",
    "doctor": "dualwrite.cli.doctor",
    "init-db": "dualwrite.cli.init_db",
    "publish": "dualwrite.cli.publish",
    "recover": "dualwrite.cli.recover",
    "spark": "dualwrite.cli.spark",
    "top": "dualwrite.cli.top",
    "transactions": "dualwrite.cli.transactions",
    "verify": "dualwrite.cli.verify",
}


class _Lazy(OneLineGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        found: click.Command = import_module(module).command
        return found


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="dualwrite", message="%(version)s")
def cli() -> None:
    """Tools for dual writes, which change a database and publish to Kafka atomically.

    Exit codes: 0 success; 1 the command worked, but something is left, wrong, or was refused; 2 wrong usage, or a
    cluster or database that cannot be reached; 130 interrupted. An error is one line on standard error.
    """
    # Without a handler, Python would print logged warnings between the lines of a command's output.
    logging.getLogger("dualwrite").addHandler(logging.NullHandler())
