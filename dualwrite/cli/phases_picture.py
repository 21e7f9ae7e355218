"""Draw the phases of batches as SVG: a stacked column for each batch, a panel for each sink. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import ceil, log10
from typing import Final
from xml.sax.saxutils import escape

from dualwrite.cli.output import duration
from spark_sink.driver.batch_lines import PHASES, BatchLine, Outcome, labels, medians_ms

_COLOURS: Final = ("#56b4e9", "#009e73", "#d55e00", "#cc79a7")
"""For each of `PHASES`, colours that a colour-blind reader can tell apart (Okabe and Ito)."""

_WIDTH: Final = 960
_PLOT_HEIGHT: Final = 260
_LEFT, _RIGHT, _ABOVE, _BELOW = 70, 20, 84, 46
_PANEL_HEIGHT: Final = _ABOVE + _PLOT_HEIGHT + _BELOW
_WIDEST_COLUMN: Final = 40.0
_LETTER_WIDTH: Final = 8
_LONGEST_LABEL: Final = 12
_STYLE: Final = "text{font:12px sans-serif;fill:#222}.title{font-weight:bold;font-size:14px}.grid{stroke:#ddd}"


def picture(sinks: Mapping[str, Sequence[BatchLine]]) -> str:
    """Return the picture, as the text of an SVG file."""
    height = _PANEL_HEIGHT * len(sinks)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for number, (sink_id, batches) in enumerate(sinks.items()):
        lines += [f'<g transform="translate(0 {number * _PANEL_HEIGHT})">', *_panel(sink_id, batches), "</g>"]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(sink_id: str, batches: Sequence[BatchLine]) -> Iterator[str]:
    step_ms = _step_ms(max(batch.total_ms for batch in batches))
    top_ms = step_ms * ceil(max(max(batch.total_ms for batch in batches), 1) / step_ms)
    yield f'<text class="title" x="{_LEFT}" y="22">{escape(sink_id)}: phases of each batch</text>'
    yield from _legend(batches)
    for at_ms in range(0, top_ms + 1, step_ms):
        y = _y(at_ms, top_ms)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_time(at_ms)}</text>'
    pitch = (_WIDTH - _LEFT - _RIGHT) / len(batches)
    names = [_shortened(label) for label in labels(batches)]
    labelled = ceil((max(map(len, names)) + 1) * _LETTER_WIDTH / pitch)
    for number, (name, batch) in enumerate(zip(names, batches, strict=True)):
        middle = _LEFT + pitch * (number + 0.5)
        yield from _column(batch, middle, min(pitch * 0.8, _WIDEST_COLUMN), top_ms)
        if number % labelled == 0:
            y = _ABOVE + _PLOT_HEIGHT + 18
            yield f'<text x="{middle:.1f}" y="{y}" text-anchor="middle">{escape(name)}</text>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text x="{middle}" y="{_PANEL_HEIGHT - 10}" text-anchor="middle">batch</text>'


def _legend(batches: Sequence[BatchLine]) -> Iterator[str]:
    longest = [max(column) for column in zip(*(batch.times_ms for batch in batches), strict=True)]
    shown = zip(PHASES, _COLOURS, medians_ms(batches), longest, strict=True)
    for number, (phase, colour, median_ms, longest_ms) in enumerate(shown):
        x = _LEFT + number * (_WIDTH - _LEFT - _RIGHT) // len(PHASES)
        yield f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="46">{phase}</text>'
        yield f'<text x="{x + 18}" y="62">median {_time(median_ms)}, longest {_time(longest_ms)}</text>'


def _column(batch: BatchLine, middle: float, width: float, top_ms: int) -> Iterator[str]:
    told = ", ".join(f"{phase} {time_ms} ms" for phase, time_ms in zip(PHASES, batch.times_ms, strict=True))
    outcome = "" if batch.outcome is Outcome.COMMITTED else f" ({batch.outcome})"
    yield f"<g><title>batch {batch.batch_id} of {escape(batch.query_id)}{outcome}: {told}</title>"
    borders = pairwise(accumulate(batch.times_ms, initial=0))
    for colour, (low_ms, high_ms) in zip(_COLOURS, borders, strict=True):
        if high_ms > low_ms:
            y = _y(high_ms, top_ms)
            yield (
                f'<rect x="{middle - width / 2:.1f}" y="{y}" width="{width:.1f}" '
                f'height="{_y(low_ms, top_ms) - y:.1f}" fill="{colour}"/>'
            )
    yield "</g>"


def _shortened(label: str) -> str:
    """Return the end of a long label, which has the number or date of the batch."""
    return label if len(label) <= _LONGEST_LABEL else f"…{label[1 - _LONGEST_LABEL :]}"


def _y(at_ms: float, top_ms: int) -> float:
    return round(_ABOVE + _PLOT_HEIGHT * (1 - at_ms / top_ms), 1)


def _step_ms(longest_ms: int) -> int:
    """Return the distance of two lines of the grid: 1, 2 or 5 times a power of ten, for at most six lines."""
    exponent: int = 10 ** int(log10(max(longest_ms / 5, 1)))
    return next(each * exponent for each in (1, 2, 5, 10) if each * exponent * 5 >= longest_ms)


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else duration(int(milliseconds))
