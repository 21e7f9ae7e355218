"""A view that fills the terminal and is updated until Ctrl-C: `dualwrite top` and `dualwrite spark status --watch`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from rich.console import RenderableType
from rich.live import Live

from dualwrite.cli.numbers import number_option
from dualwrite.cli.output import console

DEFAULT_INTERVAL_S = 2.0

Command = TypeVar("Command", bound=Callable[..., object])


def interval_option(command: Command) -> Command:
    """Add `--interval`, the pause between two updates of the view."""
    return number_option(
        "--interval",
        metavar="SECONDS",
        least=0.1,
        default=DEFAULT_INTERVAL_S,
        help="Time between two updates of the view.",
    )(command)


def show_live(view: Callable[[int], RenderableType], interval_s: float) -> None:
    """Show `view(width)` until Ctrl-C, always as wide as the terminal."""
    out = console()
    with Live(console=out, screen=True, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            live.update(view(out.width), refresh=True)
            time.sleep(interval_s)
