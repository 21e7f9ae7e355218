"""How errors show what a caller gave: whole, or only its beginning if it is very long."""

from __future__ import annotations

from typing import Any, Final

_MOST_CHARACTERS: Final = 100
_KEPT: Final = 40


def shown(value: Any) -> str:
    """Return `repr(value)`; of a very long one the beginning, and how long it is."""
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return f"{value[:_KEPT]!r}... ({len(value)} characters)"
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_KEPT]}... ({len(text)} characters)"
