"""Counting the calls of a method."""

from __future__ import annotations

from typing import Any


class Calls:
    """Counts the calls of a method of one object, without changing it."""

    def __init__(self, of: Any, name: str) -> None:
        self._genuine = getattr(of, name)
        self.count = 0
        setattr(of, name, self._call)

    def _call(self, *given: Any, **named: Any) -> Any:
        self.count += 1
        return self._genuine(*given, **named)
