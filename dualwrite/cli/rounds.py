"""Recovery in rounds until a signal: `dualwrite recover` and `dualwrite spark recover` with `--interval`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import click

from dualwrite.cli.failures import LEFT, UNUSABLE, exit_code, sentence
from dualwrite.cli.numbers import number_option
from dualwrite.cli.output import print_json_line


class Report(Protocol):
    """The report of one round."""

    @property
    def found(self) -> tuple[Any, ...]: ...

    @property
    def unseen(self) -> tuple[str, ...]: ...

    @property
    def is_clean(self) -> bool: ...


Command = TypeVar("Command", bound=Callable[..., Any])
ReportT = TypeVar("ReportT", bound=Report)


def round_options(*, apply: str, min_age: str) -> Callable[[Command], Command]:
    """Add `--apply`, `--min-age`, `--once` and `--interval`, with help texts for the first two."""

    def decorate(command: Command) -> Command:
        for option in (
            click.option(
                "--interval",
                type=click.FloatRange(min=0, min_open=True),
                metavar="SECONDS",
                help="Repeat until SIGTERM or SIGINT, with this pause between two rounds.",
            ),
            click.option("--once", is_flag=True, help="Run one round; the default."),
            number_option("--min-age", metavar="SECONDS", least=0.0, default=60.0, help=min_age),
            click.option("--apply/--dry-run", default=False, help=apply),
        ):
            command = option(command)
        return command

    return decorate


def check_rounds(*, once: bool, interval: float | None) -> None:
    """Raise UsageError if both are given."""
    if once and interval is not None:
        raise click.UsageError("--once and --interval cannot be used together")


def in_rounds(
    command: str,
    run: Callable[[threading.Event, Callable[[ReportT], None], Callable[[Exception], None]], object],
    interval_s: float,
    *,
    show: Callable[[ReportT], None],
    document: Callable[[ReportT], Any],
    as_json: bool,
) -> int:
    """Call `run(stopped, heard, failed)` until SIGINT or SIGTERM; return the exit code of the last round."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    code = 0

    def heard(report: ReportT) -> None:
        nonlocal code
        code = 0 if report.is_clean else LEFT
        if as_json:
            print_json_line(document(report))
        elif report.found or report.unseen:
            show(report)

    def failed(error: Exception) -> None:
        nonlocal code
        code = max(exit_code(error), UNUSABLE)
        click.echo(f"{command}: {sentence(error)}; the next round is in {interval_s:g} s", err=True)

    run(stopped, heard, failed)
    return code
