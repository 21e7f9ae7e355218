"""The report at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.flights_spark.kill_plan import Moment
from examples.flights_spark.methods import Method
from examples.flights_spark.options import Options
from examples.flights_spark.tally import Tally
from examples.flights_spark.verdict import Verdict

_EXAMPLES = 10
_NOT_APPLICABLE = "-"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run, after all its kills."""

    tally: Tally
    verdicts: Mapping[Method, Verdict]
    seconds: float


def print_report(console: Console, result: Result, options: Options) -> None:
    """Print the results and their meaning."""
    console.print()
    console.print(_table(result, options.rows))
    for method, verdict in result.verdicts.items():
        for line in _conclusion(method, verdict):
            console.print(line)
    if result.tally.kills:
        console.print(_moments(result.tally), highlight=False)
    console.print(
        f"To repeat the same plan: --seed {options.seed}. Plot of offsets and kills: {options.plot}", highlight=False
    )


def _table(result: Result, flights: int) -> Table:
    tally, verdicts = result.tally, result.verdicts
    table = Table(title="Input, topic, table and totals, compared at the end", title_justify="left", min_width=60)
    table.add_column("")
    table.add_column("this sink", justify="right")
    table.add_column("foreachBatch,\nat least once", justify="right")
    table.add_row("flights in the input", *[f"{flights:,}"] * 2)
    table.add_row("rows in the table", *(f"{verdict.rows:,}" for verdict in verdicts.values()))
    table.add_row("records in the topic", *(f"{verdict.records:,}" for verdict in verdicts.values()))
    table.add_row("kills (SIGKILL, driver and JVM)", *[f"{tally.kills}"] * 2)
    table.add_row("tasks per batch, life by life", " ".join(map(str, tally.tasks)), "the same")
    table.add_row("batches rolled forward", f"{tally.rolled_forward}", _NOT_APPLICABLE)
    table.add_row("batches rolled back", f"{tally.rolled_back}", _NOT_APPLICABLE)
    table.add_row("seconds", f"{result.seconds:.0f}", "")
    table.add_section()
    table.add_row("divergences", *(_coloured(verdict.divergences) for verdict in verdicts.values()), style="bold")
    for kind in next(iter(verdicts.values())).kinds:
        counts = [len(verdict.kinds[kind]) for verdict in verdicts.values()]
        if any(counts):
            table.add_row(f"  {kind}", *(f"{count:,}" for count in counts))
    return table


def _coloured(count: int) -> Text:
    return Text(f"{count:,}", style="green" if count == 0 else "red")


def _conclusion(method: Method, verdict: Verdict) -> list[Text]:
    name = str(method).capitalize()
    if verdict.divergences == 0:
        return [Text(f"{name}: input, topic, table and totals agree, record by record.", style="green")]
    counts = ", ".join(f"{len(found):,} {kind}" for kind, found in verdict.kinds.items() if found)
    said = [Text(f"{name}: DIVERGES ({counts}).", style="red")]
    if method is Method.EXACTLY_ONCE:
        said += [Text(f"  {example}") for example in verdict.examples(_EXAMPLES)]
    return said


def _moments(tally: Tally) -> str:
    return (
        "Killed "
        + ", ".join(f"{tally.killed_in[moment]} times {moment}" for moment in Moment if tally.killed_in[moment])
        + "."
    )
