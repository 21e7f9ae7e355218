"""Plot offsets and kills over time, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from examples.flights_spark.methods import Method
from examples.flights_spark.sampler import Sample, last
from examples.flights_spark.tally import Tally

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_END: Final = "#9aa0a6"
_STABLE: Final = "#1a73e8"
_ROWS: Final = "#188038"
_KILL: Final = "#d93025"
_TITLES: Final = {
    Method.EXACTLY_ONCE: "This sink: every flight once, in the topic and in the table",
    Method.AT_LEAST_ONCE: "foreachBatch, a producer and an insert: a batch that a kill interrupts is written again",
}


def save_plot(path: Path, samples: Mapping[Method, Sequence[Sample]], tally: Tally, *, rows: int) -> None:
    """Draw a panel for each method, one above the other on the same time axis."""
    from matplotlib.figure import Figure  # takes as long to import as everything else together

    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(len(samples), 1, sharex=True, sharey=True)
    for panel, (method, looks) in zip(panels, samples.items(), strict=True):
        _draw(panel, looks, tally, rows)
        panel.set_title(_TITLES[method], loc="left")
    panels[-1].set_xlabel("seconds")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _draw(panel: Axes, samples: Sequence[Sample], tally: Tally, rows: int) -> None:
    times = [sample.second for sample in samples]
    for number, (second, _) in enumerate(tally.killed):
        panel.axvline(second, color=_KILL, linewidth=1, linestyle=":", label="SIGKILL" if number == 0 else None)
    panel.axhline(rows, color="black", linewidth=0.8, linestyle="--", label=f"flights in the input ({rows:,})")
    for values, colour, width, label in (
        ([sample.end_offset for sample in samples], _END, 1.2, "end offset, with aborted records and markers"),
        ([sample.stable_offset for sample in samples], _STABLE, 1.2, "last stable offset (read_committed)"),
        ([sample.rows for sample in samples], _ROWS, 2.2, "rows in the table"),
    ):
        panel.step(times, values, where="post", color=colour, linewidth=width, label=label)
    panel.fill_between(
        times,
        [sample.stable_offset for sample in samples],
        [sample.end_offset for sample in samples],
        step="post",
        color=_STABLE,
        alpha=0.25,
        label="held back: prepared or still being written",
    )
    end = last(samples)
    said = f"at the end: {end.rows:,} rows in the table, end offset {end.end_offset:,}"
    panel.text(0.01, 0.88, said, transform=panel.transAxes, va="top", backgroundcolor="white")
    panel.set_ylabel("offsets, rows")
    panel.grid(alpha=0.25)
