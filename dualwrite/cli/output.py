"""Output: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

_WIDE: Final = 10_000  # output for another program is not wrapped
_LEAST_LAST: Final = 20
"""How narrow the last column may become; only its texts are readable when wrapped."""
_GAP: Final = 2


def console() -> Console:
    """Return a console for standard output: as wide as the terminal, or without wrapping if it is no terminal."""
    is_terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if is_terminal else _WIDE, highlight=False, markup=False, emoji=False)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return a table in which, if `width` allows it, only the last column is wrapped. Texts are not interpreted."""
    made = Table(box=None, pad_edge=False, show_edge=False)
    whole = _least_width(headers, rows) <= width
    for header in headers:
        made.add_column(header, overflow="fold", no_wrap=whole and header != headers[-1])
    for row in rows:
        made.add_row(*row)
    return made


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, without trailing spaces.

    If the terminal is too narrow, print a block of lines per row instead: a wrapped id could not be copied into the
    next command.
    """
    cells = [tuple(map(str, row)) for row in rows]
    out = console()
    if _least_width(headers, cells) > out.width:
        _print_blocks(headers, cells)
        return
    with out.capture() as captured:
        out.print(table(headers, cells, out.width))
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _print_blocks(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    width = max(map(len, headers)) + _GAP
    for row in rows:
        for header, cell in zip(headers, row, strict=True):
            click.echo(f"{header:{width}}{cell}".rstrip())
        click.echo()


def columns_that_fit(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, dispensable: Sequence[str]
) -> tuple[str, ...]:
    """Return the headers that fit into `width`, after removing as many of `dispensable`, in order, as needed."""
    left = list(headers)
    for header in dispensable:
        if _least_width(left, only(left, headers, rows)) <= width:
            break
        left.remove(header)
    return tuple(left)


def only(chosen: Collection[str], headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the cells of the chosen columns."""
    return [tuple(cell for header, cell in zip(headers, row, strict=True) if header in chosen) for row in rows]


def _least_width(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of a table in which only the last column is wrapped."""
    *whole, last = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    return sum(whole) + _GAP * len(whole) + min(last, _LEAST_LAST)


def print_json(value: Any) -> None:
    """Print one document, indented."""
    click.echo(json.dumps(value, indent=2, sort_keys=False, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print one document on one line, for a stream of documents."""
    click.echo(json.dumps(value, ensure_ascii=False))
    sys.stdout.flush()


def shown(value: object) -> str:
    """Return a cell's text; a missing value is `None`, as kafka-transactions.sh writes it."""
    return "None" if value is None else str(value)


def counted(number: int, thing: str) -> str:
    """Return a number with its noun: `1 row`, `2 rows`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(milliseconds: int | None) -> str:
    """Return a duration for people: 90061000 is `1d 1h`."""
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
