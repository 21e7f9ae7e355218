"""The clock of all waits for Kafka: that of event loops, even if `time.monotonic` was replaced.

A library that freezes time replaces `time.monotonic` in every module, but not the clock of uvloop. Were some waits
measured by one and some by the other, timers would end before their deadlines are reached, and wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final


def _unpatched(name: str) -> Callable[[], float]:
    if not hasattr(time, "clock_gettime"):  # Windows
        return time.monotonic
    return partial(time.clock_gettime, getattr(time, name, time.CLOCK_MONOTONIC))


monotonic_s: Final = _unpatched("CLOCK_MONOTONIC")
"""Return the time in seconds, of a clock that only goes forward."""

since_boot_s: Final = _unpatched("CLOCK_BOOTTIME")
"""Return the time in seconds, of such a clock that also counts the time in which a machine with Linux is suspended."""


def monotonic_ms() -> float:
    """Return the time of the same clock in milliseconds."""
    return monotonic_s() * 1000
