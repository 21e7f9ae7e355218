"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click
from rich import box
from rich.console import Console
from rich.table import Table

_WIDE: Final = 10_000  # what is read by another program is not wrapped


def console() -> Console:
    """Standard output as it is now: as wide as the terminal, or without wrapping where there is none."""
    is_terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if is_terminal else _WIDE, highlight=False, markup=False, emoji=False)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, fold: bool = False) -> Table:
    """A table; texts are shown as they are."""
    made = Table(box=box.SIMPLE_HEAD if fold else None, pad_edge=False, show_edge=False)
    for header in headers:
        made.add_column(header, overflow="fold")
    for row in rows:
        made.add_row(*map(str, row))
    return made


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns under headers; for a program, a line per row that ends with its last character."""
    out = console()
    with out.capture() as captured:
        out.print(table(headers, rows))
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def print_json(value: Any) -> None:
    """One document, indented."""
    click.echo(json.dumps(value, indent=2, sort_keys=False, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """One document on one line, for a stream of them."""
    click.echo(json.dumps(value, ensure_ascii=False))
    sys.stdout.flush()


def shown(value: object) -> str:
    """As kafka-transactions.sh writes what is not there."""
    return "None" if value is None else str(value)


def duration(milliseconds: int | None) -> str:
    """For people: 90061000 is `1d 1h`."""
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(int(seconds), size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
