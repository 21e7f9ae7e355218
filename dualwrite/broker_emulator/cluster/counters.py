"""Counters on the path of every request: additions only, because every request pays for them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

BOUNDS_MS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0, 30000.0)
"""Upper bounds of a histogram's buckets; there is one more bucket for longer durations."""

_BOUNDS_NS: Final = [round(bound * 1_000_000) for bound in BOUNDS_MS]


class Histogram:
    """A histogram of durations."""

    __slots__ = ("buckets", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_MS) + 1)
        self.total_ns = 0
        self.longest_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        self.buckets[bisect_left(_BOUNDS_NS, duration_ns)] += 1
        self.total_ns += duration_ns
        if duration_ns > self.longest_ns:
            self.longest_ns = duration_ns


class ApiRequests:
    """The requests of one API at one node."""

    __slots__ = ("duration", "errors", "throttle_ms")

    def __init__(self) -> None:
        self.duration = Histogram()
        self.errors: dict[int, int] = {}
        """The number of responses with each error code."""
        self.throttle_ms = 0
        """The total time for which quotas throttled clients."""

    def failed(self, codes: Sequence[int]) -> None:
        """Count the error codes of one response."""
        for code in codes:
            self.errors[code] = self.errors.get(code, 0) + 1


class NodeCounters:
    """The counters of one node."""

    __slots__ = ("by_api", "bytes_in", "bytes_out", "connections_made", "verification_failures", "verifications")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections_made = 0
        self.by_api: defaultdict[int, ApiRequests] = defaultdict(ApiRequests)
        self.verifications = Histogram()
        """The time that the coordinator took to verify or add partitions (VerificationTimeMs of KIP-890)."""
        self.verification_failures = 0
        """Partitions that were not verified (VerificationFailureRate of KIP-890)."""
