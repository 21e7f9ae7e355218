"""Errors that end a command: one line on standard error that gives advice, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import click
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from dualwrite.cli.colours import Meaning, coloured
from dualwrite.cli.groups import Group
from dualwrite.errors import (
    AdminError,
    DualWriteError,
    IncompleteAnswerError,
    KafkaTimeoutError,
)
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.judge import refusal_of

LEFT: Final = 1
"""The exit code of a command that worked, but found a fault, left work undone, or was refused."""
UNUSABLE: Final = 2
"""The exit code of wrong usage, or of a cluster or database that cannot be reached."""
INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as a shell reports it."""

_NAME: Final = "dualwrite"
_REFUSED: Final = (AdminError, IncompleteAnswerError)


class OneLineGroup(Group):
    """A command group that prints an error as one line; `--help` shows the usage."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, _NAME, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = UNUSABLE
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx is not None else _NAME
            code = _report(path, f"{error.format_message()} ({path} --help)", UNUSABLE)
        except click.ClickException as error:
            code = _report(_NAME, error.format_message(), error.exit_code)
        except click.Abort:
            code = _report(_NAME, "interrupted", INTERRUPTED)
        except BrokenPipeError:
            sys.stderr.close()  # nothing reads the output any more: prevent the error of the interpreter's last flush
            code = LEFT
        except (DualWriteError, SQLAlchemyError, ModuleNotFoundError, OSError) as error:
            code = _report(_NAME, sentence(error), exit_code(error))
        sys.exit(code)


def exit_code(error: Exception) -> int:
    """Return the exit code of a command that this error ended."""
    if isinstance(error, _REFUSED):
        return LEFT
    return (refusal_of(error).exit_code if isinstance(error, DualWriteError) else 0) or UNUSABLE


def sentence(error: Exception) -> str:
    """Return the fault and the next step, in one line."""
    what = " ".join(first_line(error).split())
    for kind, remedy in _REMEDIES:
        if isinstance(error, kind):
            return f"{what}; {remedy}"
    return what


_REMEDIES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (KafkaTimeoutError, "check --bootstrap-server and --command-config, or allow more time with --timeout-ms"),
    (
        IncompleteAnswerError,
        "nothing is shown, because the missing results would look as if they did not exist",
    ),
    (NoSuchModuleError, "use a dialect that SQLAlchemy has, as in postgresql+psycopg://..., or install its package"),
    (ArgumentError, "write --database as dialect+driver://user@host/name"),
    (
        DBAPIError,
        "check --database (or DUALWRITE_DATABASE_URL), and that the server is running and accepts the login",
    ),
    (ModuleNotFoundError, "install the package that contains it"),
)


def _report(path: str, what: str, code: int) -> int:
    click.echo(f"{coloured(f'{path}:', Meaning.ERROR, sys.stderr)} {what}", err=True)
    return code
