"""Exponential back-off between repeated requests."""

from __future__ import annotations

from typing import Final

CONCURRENT_TRANSACTIONS: Final = 51
FIRST_CONCURRENT_BACKOFF_MS: Final = 20
"""Markers take milliseconds to write; 100 ms would throttle back-to-back transactions (KAFKA-5477)."""


class Backoff:
    """A wait that doubles with each failure in a row, from `first_ms` to `greatest_ms`."""

    __slots__ = ("_failures", "_first_ms", "_greatest_ms")

    def __init__(self, first_ms: float, greatest_ms: float) -> None:
        self._first_ms = first_ms
        self._greatest_ms = max(first_ms, greatest_ms)
        self._failures = 0

    def succeeded(self) -> None:
        """Start over with the first wait."""
        self._failures = 0

    def failed(self, error_code: int | None = None) -> float:
        """Count a failure; return how many milliseconds to wait now."""
        self._failures += 1
        if self._failures == 1 and error_code == CONCURRENT_TRANSACTIONS:
            return FIRST_CONCURRENT_BACKOFF_MS
        return float(min(self._first_ms * 2 ** min(self._failures - 1, 20), self._greatest_ms))
