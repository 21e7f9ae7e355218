"""Text from clients made safe for the log: on one line, of readable characters, and not too long."""

from __future__ import annotations

from typing import Final

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
