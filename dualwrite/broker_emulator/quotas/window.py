"""Rates over a sliding window, and a token bucket: pure functions of the counted values and the time.

The arithmetic is that of Kafka's Rate and TokenBucket, so that a client is throttled for the same time as by Kafka.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

LONGEST_MS: Final = 2**31 - 1
"""The longest throttle time that fits into a response."""


class WindowSize(NamedTuple):
    """The length and the number of samples (`quota.window.size.seconds`, `quota.window.num`)."""

    sample_ms: int = 1000
    samples: int = 11

    @property
    def complete_ms(self) -> int:
        """The length of all samples but the present one."""
        return (self.samples - 1) * self.sample_ms


class Sample(NamedTuple):
    """The value counted in one stretch of time."""

    started_ms: int
    last_ms: int
    value: float


Samples: TypeAlias = tuple[Sample, ...]
"""Samples, the oldest first."""


def counted(samples: Samples, value: float, now_ms: int, size: WindowSize) -> Samples:
    """Return `samples` with `value` counted now, without those that have expired."""
    kept = _kept(samples, now_ms, size)
    if kept and now_ms - kept[-1].started_ms < size.sample_ms:
        newest = kept[-1]
        return (*kept[:-1], Sample(newest.started_ms, now_ms, newest.value + value))
    return (*kept[-size.samples :], Sample(now_ms, now_ms, value))


def rate(samples: Samples, now_ms: int, size: WindowSize) -> float:
    """Return the value counted per second."""
    kept = _kept(samples, now_ms, size)
    return sum(sample.value for sample in kept) * 1000 / _duration_ms(kept, now_ms, size)


def throttle_ms(samples: Samples, limit: float, now_ms: int, size: WindowSize) -> int:
    """Return how long nothing may be counted until the rate is down to `limit`; 0 if it is not above."""
    excess = rate(samples, now_ms, size) - limit
    if excess <= 0:
        return 0
    return round(min(excess / limit * _duration_ms(_kept(samples, now_ms, size), now_ms, size), LONGEST_MS))


def _kept(samples: Samples, now_ms: int, size: WindowSize) -> Samples:
    return tuple(sample for sample in samples if now_ms - sample.last_ms < size.samples * size.sample_ms)


def _duration_ms(kept: Samples, now_ms: int, size: WindowSize) -> int:
    """Return the time that `kept` covers: at least all complete samples, so that a first burst is no violation."""
    elapsed_ms = now_ms - kept[0].started_ms if kept else 0
    missing = max(size.samples - 1 - elapsed_ms // size.sample_ms, 0)
    return max(elapsed_ms + missing * size.sample_ms, 1)


class Bucket(NamedTuple):
    """The tokens at one time. A new bucket is empty at the Unix epoch, and thus full by now."""

    tokens: float = 0.0
    updated_ms: int = 0


def refilled(bucket: Bucket, limit: float, now_ms: int, size: WindowSize) -> Bucket:
    """Return `bucket` with `limit` more tokens per second, up to its capacity."""
    burst = size.samples * size.sample_ms / 1000 * limit
    return Bucket(min(burst, bucket.tokens + limit * (now_ms - bucket.updated_ms) / 1000), now_ms)


def refill_ms(bucket: Bucket, limit: float) -> int:
    """Return how long it takes until the bucket is no longer below empty."""
    return max(round(min(-bucket.tokens / limit * 1000, LONGEST_MS)), 0)
