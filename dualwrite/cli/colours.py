"""Colour words by meaning: good, needs attention, wrong, or an identifier to copy into another command.

Colours are only added for a reader at a terminal: the words are the same without them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TextIO

import click


class Meaning(StrEnum):
    """The meaning of a word for the reader; the value is the colour, one of a terminal's eight."""

    OK = "green"
    WARN = "yellow"
    ERROR = "red"
    IDENTIFIER = "cyan"


IDENTIFIERS: Final = frozenset(
    {"TransactionalId", "ProducerId", "Pair", "Sink", "Query", "Batch", "Topic", "TopicPartitions", "StartOffset"}
)
"""The columns of identifiers."""

_DONE: Final = ("commit", "publish", "publish-again", "repair", "acknowledge-lost", "take-out")
_LEFT_OPEN: Final = ("undecided", "in-use", "young", "ending", "stored", "writing", "prepared", "condemned", "COMMIT")
_WRONG: Final = (
    "no-row",
    "no row",
    "lost",
    "LOST",
    "not-proven",
    "no-evidence",
    "refused",
    "overdue",
    "forgotten",
    "another-cluster",
    "went-back",
    "hangs",
    "failed",
    "owed",
    "fail",
)
_STATES: Final[Mapping[str, Meaning]] = {
    **dict.fromkeys(
        ("ok", "commit", "publish", "publish-again", "repair", "acknowledge-lost", "take-out", "DONE"), Meaning.OK
    ),
    **dict.fromkeys(("warn", "abort", "terminate", "condemn", *_LEFT_OPEN), Meaning.WARN),
    **dict.fromkeys(_WRONG, Meaning.ERROR),
}
WORDS: Final[Mapping[str, Mapping[str, Meaning]]] = {
    "Verdict": _STATES,
    "Action": _STATES,
    "Status": {**_STATES, "committed": Meaning.OK},
    "Database": {**_STATES, "committed": Meaning.WARN},  # in doubt: Kafka's commit is still missing
}
"""The words of a column that have a meaning; all others have no colour."""


def meaning_of(header: str, cell: str) -> Meaning | None:
    """Return the meaning of a cell of a table."""
    if header in IDENTIFIERS and cell not in ("-", "None"):
        return Meaning.IDENTIFIER
    return WORDS.get(header, {}).get(cell)


def has_colours(stream: TextIO | None = None) -> bool:
    """Return whether colours may be written: to a terminal that has them, unless NO_COLOR is set (no-color.org)."""
    stream = sys.stdout if stream is None else stream
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, meaning: Meaning | None, stream: TextIO | None = None) -> str:
    """Return the text in the colour of its meaning, or unchanged if colours may not be written."""
    return click.style(text, fg=meaning.value) if meaning is not None and has_colours(stream) else text
