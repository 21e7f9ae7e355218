"""Draw the two commits of a dual write into docs/pictures: `python docs/draw_crash_points.py`.

crash-points.svg has every crash, dual-write.svg for the README one on each side of the decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from dualwrite.recipes.core.pause_points import PausePoint

PICTURES: Final = Path(__file__).with_name("pictures")

BLOCK: Final = 90
DATABASE: Final = 330
KAFKA: Final = 560
_LINES: Final = {BLOCK: "your process", DATABASE: "database", KAFKA: "Kafka"}
_NOTES: Final = 640
_WIDTH: Final = 1060
_TOP: Final = 70
_ROW: Final = 33
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24}.head{font-weight:600;font-size:15px}.name{font-weight:600}"
    ".note{font-size:12.5px}.paper{fill:#ffffff}.line{stroke:#8a939e;stroke-dasharray:4 4}"
    ".arrow{stroke:#1b1f24;stroke-width:1.4;fill:none}.tip{fill:#1b1f24}.before{fill:#fff4d6}.after{fill:#dcf5e3}"
    ".crash{stroke:#c2261c;stroke-width:2.4}.decision{stroke:#137a3a;stroke-width:2}.decided{fill:#137a3a;font-weight:600}"
    "@media (prefers-color-scheme:dark){text{fill:#e6eaee}.paper{fill:#1b1f24}.line{stroke:#77808a}"
    ".arrow{stroke:#e6eaee}.tip{fill:#e6eaee}.before{fill:#3b3214}.after{fill:#153a22}.crash{stroke:#ff7a70}"
    ".decision{stroke:#5fd38a}.decided{fill:#5fd38a}}"
)


@dataclass(frozen=True, slots=True)
class Message:
    """An arrow between two lifelines."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Crash:
    """A point at which the process may die, and what follows."""

    point: PausePoint
    follows: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The line between what is undone and what is completed."""


Row = Message | Crash | Decision
_UNDONE: Final = "the database rolls back"
_TAKE_OVER: Final = Message(BLOCK, KAFKA, "only if new here: take the id over")
ROWS: Final[tuple[Row, ...]] = (
    Message(BLOCK, DATABASE, "your statements"),
    Message(BLOCK, DATABASE, "lock the state row"),
    Crash(PausePoint.AFTER_LOCK, f"{_UNDONE}; Kafka has heard nothing"),
    _TAKE_OVER,
    Crash(PausePoint.AFTER_INIT, "the next owner takes the id over, and completes by the row"),
    Crash(PausePoint.AFTER_COMPLETION, "what the predecessor left is completed; the rest as before"),
    Crash(PausePoint.AFTER_TAKEOVER, f"{_UNDONE}; nothing is open in Kafka"),
    Message(BLOCK, KAFKA, "begin a transaction"),
    Crash(PausePoint.AFTER_BEGIN, f"{_UNDONE}; nothing is open in Kafka"),
    Message(BLOCK, KAFKA, "send the records"),
    Crash(PausePoint.AFTER_SEND, f"{_UNDONE}; the next owner aborts in Kafka"),
    Message(BLOCK, KAFKA, "prepare: all records are stored"),
    Crash(PausePoint.AFTER_PREPARE, f"{_UNDONE}; the row does not name it: aborted"),
    Message(BLOCK, DATABASE, "write which transaction it is"),
    Crash(PausePoint.AFTER_STATE_WRITE, f"{_UNDONE}, the row too: aborted"),
    Crash(PausePoint.BEFORE_DATABASE_COMMIT, f"{_UNDONE}, the row too: aborted"),
    Message(BLOCK, DATABASE, "COMMIT"),
    Decision(),
    Crash(PausePoint.AFTER_DATABASE_COMMIT, "the row names it: the next owner commits it in Kafka"),
    Message(BLOCK, KAFKA, "commit"),
    Crash(PausePoint.AFTER_KAFKA_COMMIT, "both have committed; the next owner finds nothing to do"),
)
_IN_SHORT: Final = (PausePoint.AFTER_PREPARE, PausePoint.AFTER_DATABASE_COMMIT)


def pictures() -> dict[str, str]:
    """Return the text of each SVG file, by its name."""
    few = [row for row in ROWS if row is not _TAKE_OVER and not (isinstance(row, Crash) and row.point not in _IN_SHORT)]
    return {"crash-points.svg": _picture(ROWS), "dual-write.svg": _picture(few)}


def _picture(rows: Sequence[Row]) -> str:
    bottom = _TOP + _ROW * (len(rows) + 1)
    decided = _middle(next(number for number, row in enumerate(rows) if isinstance(row, Decision)))
    body = [line for number, row in enumerate(rows) for line in _drawn(row, _middle(number))]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom}" '
            f'width="{_WIDTH}" height="{bottom}" '
            'role="img" aria-label="The two commits of a dual write, and what follows a crash at each point">',
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{_WIDTH}" height="{bottom}"/>',
            f'<rect class="before" x="10" y="{_TOP - 10}" width="{_WIDTH - 20}" height="{decided - _TOP + 10}"/>',
            f'<rect class="after" x="10" y="{decided}" width="{_WIDTH - 20}" height="{bottom - decided - 10}"/>',
            *_lifelines(bottom),
            *body,
            "</svg>\n",
        ]
    )


def _middle(number: int) -> int:
    return _TOP + _ROW * number + _ROW // 2 + 8


def _lifelines(bottom: int) -> Iterator[str]:
    for x, name in _LINES.items():
        yield f'<text class="head" x="{x}" y="{_TOP - 30}" text-anchor="middle">{name}</text>'
        yield f'<line class="line" x1="{x}" x2="{x}" y1="{_TOP - 18}" y2="{bottom - 16}"/>'
    yield f'<text class="head" x="{_NOTES}" y="{_TOP - 30}">if the process dies here</text>'


def _drawn(row: Row, y: int) -> Iterator[str]:
    if isinstance(row, Message):
        yield f'<text x="{(row.start + DATABASE) / 2}" y="{y - 5}" text-anchor="middle">{escape(row.text)}</text>'
        yield f'<line class="arrow" x1="{row.start}" x2="{row.end - 7}" y1="{y}" y2="{y}"/>'
        yield f'<path class="tip" d="M{row.end} {y}l-9 -4.5v9z"/>'
    elif isinstance(row, Crash):
        yield f'<path class="crash" d="M{BLOCK - 6} {y - 6}l12 12m0 -12l-12 12"/>'
        yield f'<text class="name" x="{BLOCK + 16}" y="{y + 4}">{row.point}</text>'
        yield f'<text class="note" x="{_NOTES}" y="{y + 4}">{escape(row.follows)}</text>'
    else:
        yield f'<line class="decision" x1="10" x2="{_WIDTH - 10}" y1="{y}" y2="{y}"/>'
        yield f'<text class="decided" x="{_NOTES}" y="{y - 8}">above: neither side; below: both sides</text>'


if __name__ == "__main__":
    for name, text in pictures().items():
        PICTURES.joinpath(name).write_text(text)
