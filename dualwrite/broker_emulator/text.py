"""Texts for people: suggestions about unknown names, and text from clients made safe for the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the known name that resembles `name` most, as the end of a sentence; "" if none does."""
    from difflib import get_close_matches  # loaded only for the error message

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


_MAX_CHARACTERS: Final = 1000


def log_text(text: object) -> str:
    """Return `text` with line ends, escape sequences and other invisible characters spelled out, and cut if it is long.

    Otherwise a client whose name contains a line end could write its own lines into the log.
    """
    shown = str(text)
    if len(shown) > _MAX_CHARACTERS:
        shown = f"{shown[:_MAX_CHARACTERS]}... ({len(shown)} characters)"
    if shown.isprintable():
        return shown
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown)
