"""Waits before requests: the back-off between repeated ones, and the pause before the next transaction's batches.

No I/O. The pause is learned from the latencies of earlier batches. A transaction is over for its producer when the
coordinator has decided; the markers are written after that. If a batch of the next transaction arrives before the last
marker, the partition's leader holds it, and asks the coordinator again every 20 ms (KAFKA-18654,
add.partitions.to.txn.retry.backoff.ms). If markers take 3 ms, a batch that is sent at once is therefore stored after
20 ms, and one that is sent 3 ms later after 4 ms.

There is no pause until several batches out of a few were held, and after a while sending without a pause is tried
again: a response can be late for other reasons, and then a pause would not help.
"""

from __future__ import annotations

from typing import Final

CONCURRENT_TRANSACTIONS: Final = 51
FIRST_CONCURRENT_BACKOFF_MS: Final = 20
"""Markers take milliseconds to write; 100 ms would throttle back-to-back transactions (KAFKA-5477)."""

_HELD_MS: Final = 15.0
"""A response that takes this much longer than usual was held by a leader that asked the coordinator again."""

_RECENT_MS: Final = 50.0
"""A batch is not held because of a transaction that ended longer ago."""

_GREATEST_PAUSE_MS: Final = 10.0
_FIRST_PAUSE_MS: Final = 1.0
_LONGER: Final = 1.25
_SHORTER: Final = 0.99
_FORGETTING: Final = 1 / 16

_TRIED: Final = 8
"""Number of transactions in a row without a pause."""
_TOO_MANY: Final = 3
"""If this many of them were held, transactions with a pause follow."""
_PAUSED: Final = 256
"""Number of transactions in a row with a pause."""


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


class MarkerPace:
    """The learned pause, in milliseconds. One transaction at a time: `ended`, then `produced`, then `answered`."""

    __slots__ = ("_awaits_response", "_ended_ms", "_held", "_left", "_pause_ms", "_pauses", "_usual_ms")

    def __init__(self) -> None:
        self._pauses = False
        self._pause_ms = _FIRST_PAUSE_MS
        self._left = _TRIED
        self._held = 0
        self._usual_ms = float("inf")
        self._ended_ms: float | None = None
        self._awaits_response = False

    @property
    def may_produce_at_ms(self) -> float:
        """When the first batch of a transaction may be sent; later batches are not delayed."""
        if self._ended_ms is None or not self._pauses:
            return 0.0
        return self._ended_ms + self._pause_ms

    def ended(self, now_ms: float) -> None:
        """Note that the coordinator has ended a transaction."""
        self._ended_ms = now_ms
        self._awaits_response = False

    def produced(self, now_ms: float) -> None:
        """Note that batches were sent."""
        if self._ended_ms is not None:
            self._awaits_response = now_ms - self._ended_ms <= _RECENT_MS
            self._ended_ms = None

    def answered(self, latency_ms: float) -> None:
        """Note a Produce response; the first one after the first batches is evaluated."""
        held = latency_ms > self._usual_ms + _HELD_MS
        if latency_ms < self._usual_ms:
            self._usual_ms = latency_ms
        elif not held:  # the minimum is forgotten slowly
            self._usual_ms += (latency_ms - self._usual_ms) * _FORGETTING
        if self._awaits_response:
            self._awaits_response = False
            self._left -= 1
            if self._pauses:
                self._paused(held)
            else:
                self._tried(held)

    def _paused(self, held: bool) -> None:
        self._pause_ms = min(self._pause_ms * (_LONGER if held else _SHORTER), _GREATEST_PAUSE_MS)
        if self._left == 0:
            self._pauses, self._left = False, _TRIED

    def _tried(self, held: bool) -> None:
        self._held += held
        if self._held == _TOO_MANY:
            self._pauses, self._left, self._held = True, _PAUSED, 0
        elif self._left == 0:
            self._left, self._held, self._pause_ms = _TRIED, 0, _FIRST_PAUSE_MS
