"""Isolation levels: when a block of a pool must have its slot, at its end or before its first statement."""

from __future__ import annotations

from functools import cache

from dualwrite.errors import IllegalStateError

_SEES_NOW = frozenset({"READ COMMITTED", "READ UNCOMMITTED"})


@cache
def sees_now(level: str | None) -> bool:
    """Return whether each statement at this isolation level sees everything committed before it."""
    return level is not None and level.upper() in _SEES_NOW


def keeps_a_snapshot() -> IllegalStateError:
    """Return the error of a group whose transaction would keep a snapshot."""
    return IllegalStateError(
        "the connection's isolation level keeps a snapshot, in which a block would not see what was committed after "
        "its group began; nothing was written: use READ COMMITTED, or transaction(alone=True), which runs the block in "
        "a database transaction of its own"
    )
