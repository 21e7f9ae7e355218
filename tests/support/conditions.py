"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Return as soon as `condition()` holds; fail the test if it does not within `timeout_s`.

    It is checked more rarely the longer it takes: the awaited work shares the CPU with this loop.
    """
    started_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - started_s
        assert waited_s < timeout_s, f"not within {timeout_s} s"
        time.sleep(min(0.002 + waited_s / 20, 0.05))
