"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

_WIDE: Final = 10_000  # what is read by another program is not wrapped
_LEAST_LAST: Final = 20
"""How narrow the last column may become, whose texts are the ones that can be read in several lines."""
_GAP: Final = 2


def console() -> Console:
    """Standard output as it is now: as wide as the terminal, or without wrapping where there is none."""
    is_terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if is_terminal else _WIDE, highlight=False, markup=False, emoji=False)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table in which, as far as `width` allows it, only the last column is wrapped; texts are shown as they are."""
    made = Table(box=None, pad_edge=False, show_edge=False)
    whole = _least_width(headers, rows) <= width
    for header in headers:
        made.add_column(header, overflow="fold", no_wrap=whole and header != headers[-1])
    for row in rows:
        made.add_row(*row)
    return made


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns under headers; for a program, a line per row that ends with its last character.

    Where the terminal is too narrow for that, a block of lines per row: an id that is broken in the middle cannot be
    copied into the next command.
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
    """The headers that are left when as many of `dispensable` as it takes, in their order, have given way."""
    left = list(headers)
    for header in dispensable:
        if _least_width(left, only(left, headers, rows)) <= width:
            break
        left.remove(header)
    return tuple(left)


def only(chosen: Collection[str], headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """The cells of these columns."""
    return [tuple(cell for header, cell in zip(headers, row, strict=True) if header in chosen) for row in rows]


def _least_width(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """What a table takes in which no column but the last is wrapped."""
    *whole, last = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    return sum(whole) + _GAP * len(whole) + min(last, _LEAST_LAST)


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


def counted(number: int, thing: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


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
