"""The report at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dualwrite.recipes.core.pause_points import PausePoint
from examples.flights.comparison import Comparison
from examples.flights.job import Method
from examples.flights.tally import Tally

_EXAMPLES = 10
_NOT_APPLICABLE = "-"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one method, after all its kills."""

    method: Method
    tally: Tally
    comparison: Comparison
    seconds: float


_TITLES = {Method.DUAL_WRITE: "dual write", Method.NAIVE: "naive: commit,\nthen produce"}


def print_report(console: Console, results: Sequence[RunResult], *, seed: int) -> None:
    """Print the results and their meaning."""
    console.print()
    console.print(_table(results))
    for result in results:
        console.print(_verdict(result), highlight=False)
    if results[0].tally.kills:
        console.print(_places(results[0].tally), highlight=False)
        console.print(f"To repeat the same kills: --seed {seed}", highlight=False)


def _table(results: Sequence[RunResult]) -> RenderableType:
    title = "Table and topic, compared at the end" + (" of all kills" if results[0].tally.kills else "")
    table = Table(title=title, title_justify="left", min_width=50)
    table.add_column("")
    for result in results:
        table.add_column(_TITLES[result.method], justify="right")
    for name, value in _ROWS:
        table.add_row(name, *(_cell(value(result)) for result in results))
    if any(result.tally.failures for result in results):
        table.add_row("workers that failed by themselves", *(_cell(result.tally.failures) for result in results))
    table.add_section()
    table.add_row("divergences", *(_divergences(result) for result in results), style="bold")
    for kind in results[0].comparison.by_kind():
        counts = [len(result.comparison.by_kind()[kind]) for result in results]
        if any(counts):
            table.add_row(f"  {kind}", *map(_cell, counts))
    return table


_ROWS: tuple[tuple[str, Callable[[RunResult], int | str | None]], ...] = (
    ("rows in the table", lambda result: result.comparison.rows),
    ("records in the topic", lambda result: result.comparison.records),
    ("kills (SIGKILL)", lambda result: result.tally.kills),
    ("transactions rolled forward", lambda result: _recovered(result, result.tally.rolled_forward)),
    ("transactions rolled back", lambda result: _recovered(result, result.tally.rolled_back)),
    ("seconds", lambda result: f"{result.seconds:.1f}"),
)


def _recovered(result: RunResult, count: int) -> int | None:
    return None if result.method is Method.NAIVE else count


def _cell(value: int | str | None) -> str:
    if value is None:
        return _NOT_APPLICABLE
    return f"{value:,}" if isinstance(value, int) else value


def _divergences(result: RunResult) -> Text:
    count = result.comparison.divergences
    return Text(f"{count:,}", style="green" if count == 0 else "red")


def _verdict(result: RunResult) -> RenderableType:
    comparison = result.comparison
    if comparison.divergences == 0:
        return Text(
            f"{_name(result)}: table and topic agree, record by record and in order per key.",
            style="green" if result.method is Method.DUAL_WRITE else "",
        )
    counts = ", ".join(f"{len(found):,} {kind}" for kind, found in comparison.by_kind().items() if found)
    sentence = Text(f"{_name(result)}: table and topic DIVERGE ({counts}).", style="red")
    if result.method is Method.NAIVE:
        return sentence
    return Group(sentence, *(Text(f"  {example}") for example in comparison.examples(_EXAMPLES)))


def _name(result: RunResult) -> str:
    return str(result.method).capitalize()


def _places(tally: Tally) -> str:
    places = ", ".join(f"{point} {tally.killed_at[point]}" for point in PausePoint if tally.killed_at[point])
    return f"Killed at: {places}."
