"""The progress of a run: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.flights.tally import Tally

_LINES_PER_RUN = 10


@contextlib.contextmanager
def show_progress(console: Console, title: str, *, rows: int, kills: int) -> Iterator[Callable[[Tally], None]]:
    """Show progress; yield the function to call with every change."""
    shown = _bar if console.is_terminal else _lines
    with shown(console, title, rows, kills) as show:
        yield show


class _Bar(Progress):
    """A bar that leaves room for a terminal's ^C, which would otherwise break the line and duplicate the bar."""

    def get_renderable(self) -> RenderableType:
        return _Narrower(super().get_renderable(), by=len("^C") + 1)


class _Narrower:
    """A renderable that leaves columns free at the right."""

    def __init__(self, content: RenderableType, *, by: int) -> None:
        self._content = content
        self._by = by

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Constrain(self._content, max(1, options.max_width - self._by))


@contextlib.contextmanager
def _bar(console: Console, title: str, rows: int, kills: int) -> Iterator[Callable[[Tally], None]]:
    progress = _Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("rows   [red]{task.fields[kills]}[/]/{task.fields[planned]} kills   life {task.fields[lives]}"),
        TimeElapsedColumn(),
        console=console,
        expand=True,
    )
    with progress:
        task = progress.add_task(f"{title:<10}", total=rows, kills=0, planned=kills, lives=1)
        yield lambda tally: progress.update(task, completed=tally.rows, kills=tally.kills, lives=tally.lives)


@contextlib.contextmanager
def _lines(console: Console, title: str, rows: int, kills: int) -> Iterator[Callable[[Tally], None]]:
    shown_tenths = 0

    def show(tally: Tally) -> None:
        nonlocal shown_tenths
        tenths = tally.rows * _LINES_PER_RUN // rows
        if tenths > shown_tenths:
            shown_tenths = tenths
            console.print(
                f"{title}: {tally.rows:,} of {rows:,} rows, {tally.kills} of {kills} kills, life {tally.lives}",
                highlight=False,
            )

    yield show
