"""Reads of a property that a later step changes.

After `assert door.is_open` mypy takes `door.is_open` for true until `door` is assigned to, and the code after `assert
not door.is_open` for unreachable. `assert current(door.is_open)` has no effect on the next read.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def current(value: T) -> T:
    """Return `value`, so that mypy does not narrow the original expression."""
    return value
