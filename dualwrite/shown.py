"""Show a caller's value in errors: whole, or only its beginning if it is very long."""

from __future__ import annotations

from typing import Any, Final

_MOST_CHARACTERS: Final = 100
_KEPT: Final = 40


def shown(value: Any) -> str:
    """Return `repr(value)`; of a very long one only the beginning, and its length."""
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return f"{value[:_KEPT]!r}... ({len(value)} characters)"
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_KEPT]}... ({len(text)} characters)"
