"""Output: tables for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from dualwrite.cli.colours import Meaning, coloured, has_colours, meaning_of

NONE_SEARCHED: Final = "no topic was searched for transactions that hang: give --topic for each that blocks send to"
_WIDE: Final = 10_000  # output for another program is not wrapped
_LEAST_LAST: Final = 20
"""The least width of the last column, whose texts alone are readable when wrapped."""
_GAP: Final = 2
_HEADING: Final = "bold"
_WORDS: Final = re.compile(r"(\s*)([^\s,]*,+|[^\s,]+)")
"""A word, or a member of a list without spaces, with the space before it."""


def console() -> Console:
    """Return a console for standard output: as wide as the terminal, or without wrapping if it is no terminal."""
    return Console(
        file=sys.stdout,
        width=None if sys.stdout.isatty() else _WIDE,
        color_system="auto" if has_colours() else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Text]:
    """Return the lines of a table, in which only the last column is wrapped, at words. Texts are not interpreted.

    If `width` does not allow that, return a block of lines per row instead: a broken id could not be copied into the
    next command.
    """
    if _least_width(headers, rows) > width:
        return [line for row in rows for line in (*_block(headers, row, width), Text())]
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    widths[-1] = width - sum(widths[:-1]) - _GAP * len(widths[:-1])
    head = _row(headers, widths, [_HEADING] * len(headers))
    body = (_row(row, widths, [meaning_of(*each) or "" for each in zip(headers, row, strict=True)]) for row in rows)
    return [*head, *(line for lines in body for line in lines)]


def _row(cells: Sequence[str], widths: Sequence[int], styles: Sequence[str]) -> Iterator[Text]:
    """Yield the lines of a row: the first one has all cells, the next ones the rest of the last cell."""
    indent = sum(widths[:-1]) + _GAP * len(widths[:-1])
    first, *others = wrapped(cells[-1], widths[-1])
    line = Text()
    for cell, width, style in zip(cells[:-1], widths, styles, strict=False):
        line.append(cell, style).append(" " * (width - len(cell) + _GAP))
    line.append(first, styles[-1])
    line.rstrip()
    yield line
    for other in others:
        yield Text(" " * indent).append(other, styles[-1])


def _block(headers: Sequence[str], cells: Sequence[str], width: int) -> Iterator[Text]:
    """Yield the lines of a row in which each cell has lines of its own."""
    indent = max(map(len, headers)) + _GAP
    for header, cell in zip(headers, cells, strict=True):
        yield from _row((header, cell), (indent - _GAP, width - indent), (_HEADING, meaning_of(header, cell) or ""))


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, broken at spaces and behind commas; a word that is too long is not broken."""
    lines = [""]
    for space, word in _WORDS.findall(text):
        if lines[-1] and len(lines[-1] + space + word) > width:
            lines.append(word)
        else:
            lines[-1] += space + word
    return lines


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table as wide as the terminal, without trailing spaces."""
    out = console()
    with out.capture() as captured:
        for line in table(headers, [tuple(map(str, row)) for row in rows], out.width):
            out.print(line, soft_wrap=True)
    click.echo(captured.get(), nl=False)


def print_labelled(label: str, sentence: str, meaning: Meaning | None) -> None:
    """Print `label: sentence`, with the label in the colour of its meaning, and without breaking words."""
    first, *others = wrapped(f"{label}: {sentence}", console().width)
    click.echo(f"{coloured(label, meaning)}{first.removeprefix(label)}")
    for line in others:
        click.echo(line)


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
    """Return the width of a table in which only the last column is wrapped, and no word of it."""
    *whole, last = zip(headers, *rows, strict=True)
    longest_word = max(len(word) for cell in last for _, word in _WORDS.findall(cell) or [("", "")])
    least = max(min(max(map(len, last)), _LEAST_LAST), longest_word)
    return sum(max(map(len, column)) for column in whole) + _GAP * len(whole) + least


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


def ask(*, yes: bool) -> None:
    """Ask whether to go on, unless `yes`. Raises click.Abort, and UsageError without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("cannot prompt without a terminal: pass --yes")
    click.confirm("go on?", abort=True, err=True)
