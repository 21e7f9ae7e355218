"""The end of a sentence about a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that `name` is most like, as the end of a sentence; nothing where it is like none."""
    from difflib import get_close_matches  # only who has made a mistake waits for it to load

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
