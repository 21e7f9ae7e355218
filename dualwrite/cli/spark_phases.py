"""`dualwrite spark phases`: how long the phases of each batch took, by a driver's log, as bars or as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, TextIO

import click

from dualwrite.cli.connection import json_option
from dualwrite.cli.failures import LEFT
from dualwrite.cli.groups import Command
from dualwrite.cli.numbers import number_option
from dualwrite.cli.output import console, print_json
from dualwrite.cli.phases_picture import picture
from dualwrite.cli.spark_store import sink_option
from spark_sink.driver.batch_lines import PHASES, BatchLine, Outcome, batch_lines, labels, medians_ms

_MARKS: Final = ("░", "▒", "█", "▓")
"""The characters of a bar, for each of `PHASES`."""

_NARROWEST_BAR: Final = 20
_WIDTH: Final = 120
"""The width of the output if it is no terminal."""

_NOTES: Final[Mapping[Outcome, str]] = {
    Outcome.COMMITTED: "",
    Outcome.REPLAYED: "  decided before",
    Outcome.COMPLETED_LATER: "  completed by a later plan",
}


class _NothingFoundError(click.ClickException):
    exit_code = LEFT


@click.command("phases", cls=Command, short_help="Draw the phases of batches, from a driver's log.")
@click.option(
    "--log",
    type=click.File("r", encoding="utf-8", errors="replace"),
    default="-",
    help="The driver's log (default: standard input).",
)
@sink_option
@number_option("--last", metavar="N", least=1, default=50, help="How many batches of each sink.")
@click.option("--svg", type=click.File("w", encoding="utf-8"), help="Write a picture to this file instead.")
@json_option
def command(*, log: TextIO, sink_ids: tuple[str, ...], last: int, svg: TextIO | None, as_json: bool) -> None:
    """Draw how long batches took to plan, write, decide and complete, from the lines that the sink logs.

    Reads the log only, and connects to nothing.

    Exit code: 0; 1 the log has no line of a batch; 2 wrong usage.
    """
    sinks = _newest(batch_lines(log), sink_ids, last)
    if not sinks:
        raise _NothingFoundError(
            f"the log has no line of a batch{' of ' + ', '.join(sink_ids) if sink_ids else ''}; the sink writes one "
            "for each batch, by the logger spark_sink at the level INFO, to the driver's log"
        )
    if svg is not None:
        svg.write(picture(sinks))
    if as_json:
        print_json({"batches": [_document(each) for batches in sinks.values() for each in batches]})
    elif svg is None:
        out = console()
        for line in _drawn(sinks, out.width if out.is_terminal else _WIDTH):
            click.echo(line)


def _newest(found: Iterable[BatchLine], sink_ids: Sequence[str], last: int) -> dict[str, list[BatchLine]]:
    """Return the newest batches of each sink, in the order of the log."""
    by_sink: dict[str, list[BatchLine]] = {}
    for each in found:
        if not sink_ids or each.sink_id in sink_ids:
            by_sink.setdefault(each.sink_id, []).append(each)
    return {sink_id: batches[-last:] for sink_id, batches in sorted(by_sink.items())}


def _document(batch: BatchLine) -> dict[str, Any]:
    """Return the document of a batch for `--json`; docs/cli.md has its keys."""
    return {
        "sink": batch.sink_id,
        "query": batch.query_id,
        "batch": batch.batch_id,
        "outcome": batch.outcome,
        "records": batch.records,
        **{f"{phase}_ms": time_ms for phase, time_ms in zip(PHASES, batch.times_ms, strict=True)},
    }


def _drawn(sinks: Mapping[str, Sequence[BatchLine]], width: int) -> Iterator[str]:
    for sink_id, batches in sinks.items():
        yield f"sink {sink_id}"
        yield from _rows(batches, width)
        yield ""
    yield "milliseconds;  " + "  ".join(f"{mark} {phase}" for mark, phase in zip(_MARKS, PHASES, strict=True))


def _rows(batches: Sequence[BatchLine], width: int) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("batch", "records", *PHASES, "total")]
    rows += [
        (label, *map(str, (batch.records, *batch.times_ms, batch.total_ms)))
        for label, batch in zip(labels(batches), batches, strict=True)
    ]
    rows.append(("median", "", *(f"{time_ms:.0f}" for time_ms in medians_ms(batches)), ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    longest_ms = max(batch.total_ms for batch in batches)
    notes = max(len(_NOTES[batch.outcome]) for batch in batches)
    room = max(width - sum(widths) - 2 * len(widths) - notes, _NARROWEST_BAR)
    bars = ["", *(_bar(batch, longest_ms, room) + _NOTES[batch.outcome] for batch in batches), ""]
    for row, bar in zip(rows, bars, strict=True):
        yield ("  ".join(cell.rjust(size) for cell, size in zip(row, widths, strict=True)) + f"  {bar}").rstrip()


def _bar(batch: BatchLine, longest_ms: int, width: int) -> str:
    """Return the phases in proportion to the longest batch; the borders are rounded, so that no error adds up."""
    scale = width / max(longest_ms, 1)
    borders = [round(until_ms * scale) for until_ms in accumulate(batch.times_ms, initial=0)]
    return "".join(mark * (high - low) for mark, (low, high) in zip(_MARKS, pairwise(borders), strict=True))
