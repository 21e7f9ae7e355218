"""Options that take a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def number_option(
    *names: str, metavar: str, help: str, least: float = 0, most: float | None = None, default: float | None = None
) -> Callable[[Command], Command]:
    """Add an option for a number from `least` to `most`, which may have a fraction if `least` is a float."""
    kind = click.FloatRange(min=least, max=most) if isinstance(least, float) else click.IntRange(min=least, max=most)
    return click.option(
        *names, type=kind, default=default, show_default=default is not None, metavar=metavar, help=help
    )
