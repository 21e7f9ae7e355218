"""An error that ends a command: one line on standard error that says what to do, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import click
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from dualwrite.errors import (
    AdminError,
    DualWriteError,
    IncompleteAnswerError,
    KafkaTimeoutError,
)
from dualwrite.recipes.core.database_errors import first_line

LEFT: Final = 1
"""It worked, and something is left, wrong, or was refused."""
UNUSABLE: Final = 2
"""Wrong usage, or a cluster or database that cannot be reached."""

_REFUSED: Final = (AdminError, IncompleteAnswerError)


class OneLineGroup(click.Group):
    """A command whose errors are one line; `--help` shows the usage."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, "dualwrite", complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = UNUSABLE
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx is not None else "dualwrite"
            code = _said(f"{path}: {error.format_message()} ({path} --help)", UNUSABLE)
        except click.ClickException as error:
            code = _said(f"dualwrite: {error.format_message()}", error.exit_code)
        except click.Abort:
            code = _said("dualwrite: interrupted", 130)
        except (DualWriteError, SQLAlchemyError, ModuleNotFoundError) as error:
            code = _said(f"dualwrite: {sentence(error)}", exit_code(error))
        except BrokenPipeError:
            sys.stderr.close()  # whoever read our output has gone; so would the interpreter's last flush fail
            code = LEFT
        sys.exit(code)


def exit_code(error: Exception) -> int:
    """Of a command that this error ended."""
    return LEFT if isinstance(error, _REFUSED) else UNUSABLE


def sentence(error: Exception) -> str:
    """What was wrong and what to do next, in one line."""
    said = " ".join(first_line(error).split())
    for kind, remedy in _REMEDIES:
        if isinstance(error, kind):
            return f"{said}; {remedy}"
    return said


_REMEDIES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (KafkaTimeoutError, "look at --bootstrap-server and --command-config, or give it longer with --timeout-ms"),
    (
        IncompleteAnswerError,
        "nothing is shown, because what is missing would look as if it were not there",
    ),
    (NoSuchModuleError, "name a dialect that SQLAlchemy has, as in postgresql+psycopg://..., or install its package"),
    (ArgumentError, "give --database as dialect+driver://user@host/name"),
    (DBAPIError, "look at --database (or DUALWRITE_DATABASE_URL), and whether that server runs and lets you in"),
    (ModuleNotFoundError, "install the package that has it"),
)


def _said(line: str, code: int) -> int:
    click.echo(line, err=True)
    return code
