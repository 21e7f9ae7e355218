"""Isolation levels: when a block of a pool must have its slot, at its end or before its first statement."""

from __future__ import annotations

from functools import cache

_SEES_NOW = frozenset({"READ COMMITTED", "READ UNCOMMITTED"})


@cache
def sees_now(level: str | None) -> bool:
    """Return whether each statement at this isolation level sees everything committed before it."""
    return level is not None and level.upper() in _SEES_NOW
