"""Suggestions in error messages about unknown names."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the known name that resembles `name` most, as the end of a sentence; "" if none does."""
    from difflib import get_close_matches  # loaded only for the error message

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
