"""Measure clients against their quotas, and compute how long they are throttled.

As in Kafka, each node measures for itself, except for created and deleted partitions, which the controller counts. The
time is that of the emulator's clock. While no quota is set, this module is not called.

The arithmetic is that of Kafka's Rate, over a sliding window, and TokenBucket, so that a client is throttled for the
same time as by Kafka: pure functions of the counted values and the time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.quotas.client_quotas import ClientQuotas, Limit, Quota

if TYPE_CHECKING:
    from dualwrite.broker_emulator.clock import Clock
    from dualwrite.broker_emulator.config import BrokerConfig
    from dualwrite.broker_emulator.messages.call import Call

_PRODUCE, _FETCH = 0, 1
_EXEMPT = frozenset({17, 27, 36})
"""Logins and requests between brokers (WriteTxnMarkers), which are never throttled."""
_MILLISECOND = timedelta(milliseconds=1)

LONGEST_MS: Final = 2**31 - 1
"""The longest throttle time that fits into a response."""


class NodeQuotas:
    """The usage of clients at one node."""

    def __init__(self, quotas: ClientQuotas, clock: Clock, config: BrokerConfig) -> None:
        self._quotas = quotas
        self._clock = clock
        self._size = WindowSize(config.quota_window_size_seconds * 1000, config.quota_window_num)
        self._used: dict[tuple[Quota, str, str], Samples] = {}

    def throttled(
        self, call: Call, response: Any, *, request_bytes: int, request_ns: int, size_of: Callable[[Any], int]
    ) -> tuple[Any, int]:
        """Return the response for the client, and the number of milliseconds for which it is throttled afterwards.

        `request_bytes` is the size of its request, `request_ns` its processing time, and `size_of` returns the size of
        a response.
        """
        if call.api.key in _EXEMPT:
            return response, 0
        longest_ms = self._by_time(call, request_ns)
        if response is not None and hasattr(response, "throttle_time"):
            longest_ms = max(longest_ms, response.throttle_time // _MILLISECOND)
        if call.api.key == _PRODUCE:
            longest_ms = max(longest_ms, self._use(Quota.PRODUCER_BYTE_RATE, call, request_bytes))
        elif call.api.key == _FETCH:
            response, longest_ms = self._fetched(call, response, longest_ms, size_of)
        if longest_ms and response is not None and hasattr(response, "throttle_time"):
            response.throttle_time = longest_ms * _MILLISECOND
        return response, longest_ms

    def _by_time(self, call: Call, request_ns: int) -> int:
        percent = request_ns / 1e9 * 100
        return min(self._use(Quota.REQUEST_PERCENTAGE, call, percent), self._size.sample_ms)

    def _fetched(self, call: Call, response: Any, longest_ms: int, size_of: Callable[[Any], int]) -> tuple[Any, int]:
        """Replace a Fetch response beyond the quota by an empty one, without counting it: the client retries."""
        limit = self._limit(Quota.CONSUMER_BYTE_RATE, call)
        if limit is not None:
            size = size_of(response)
            excess_ms = self._count(Quota.CONSUMER_BYTE_RATE, limit, size)
            if excess_ms:
                self._count(Quota.CONSUMER_BYTE_RATE, limit, -size)
            longest_ms = max(longest_ms, excess_ms)
        if longest_ms:
            response = call.new.response(
                throttle_time=longest_ms * _MILLISECOND, error_code=ErrorCode.none, session_id=0, responses=()
            )
        return response, longest_ms

    def most_fetched(self, call: Call) -> int:
        """Return the most bytes of one Fetch response: the quota of one window, so that fetching advances."""
        limit = self._limit(Quota.CONSUMER_BYTE_RATE, call)
        most: int = call.request.max_bytes
        return most if limit is None else min(most, int(limit.bound * self._size.complete_ms / 1000))

    def connected(self, host: str) -> int:
        """Count a connection from an address, and return for how many milliseconds it must wait, 0 within the quota."""
        rate = self._quotas.connection_rate(host)
        if rate is None:
            return 0
        limit = Limit(rate, host, "")
        excess_ms = self._count(Quota.CONNECTION_CREATION_RATE, limit, 1)
        if excess_ms:
            self._count(Quota.CONNECTION_CREATION_RATE, limit, -1)
        return min(excess_ms, self._size.sample_ms)

    def _use(self, quota: Quota, call: Call, value: float) -> int:
        limit = self._limit(quota, call)
        return 0 if limit is None else self._count(quota, limit, value)

    def _limit(self, quota: Quota, call: Call) -> Limit | None:
        return self._quotas.limit(quota, call.principal.name, call.client_id or "")

    def _count(self, quota: Quota, limit: Limit, value: float) -> int:
        key, now_ms = (quota, limit.user, limit.client_id), self._clock.now_ms()
        used = self._used[key] = counted(self._used.get(key, ()), value, now_ms, self._size)
        return throttle_ms(used, limit.bound, now_ms, self._size)


class ControllerQuotas:
    """The partitions that clients create and delete in the whole cluster."""

    def __init__(self, quotas: ClientQuotas, clock: Clock, config: BrokerConfig) -> None:
        self._quotas = quotas
        self._clock = clock
        self._size = WindowSize(config.controller_quota_window_size_seconds * 1000, config.controller_quota_window_num)
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def mutations(self, call: Call, *, strict_since: int) -> Mutations:
        """Return the quota of one request; from version `strict_since` on, an excess is refused (KIP-599)."""
        limit = None
        if self._quotas.is_active:
            limit = self._quotas.limit(Quota.CONTROLLER_MUTATION_RATE, call.principal.name, call.client_id or "")
        return Mutations(self, limit, is_strict=call.version >= strict_since)

    def spend(self, limit: Limit, partitions: int, *, is_strict: bool) -> int:
        """Take tokens for `partitions` (a strict quota: only from a bucket not below 0); return the time to wait."""
        key = (limit.user, limit.client_id)
        bucket = refilled(self._buckets.get(key, Bucket()), limit.bound, self._clock.now_ms(), self._size)
        if is_strict and bucket.tokens < 0:
            return max(refill_ms(bucket, limit.bound), 1)
        bucket = self._buckets[key] = bucket._replace(tokens=bucket.tokens - partitions)
        return 0 if is_strict else refill_ms(bucket, limit.bound)


class Mutations:
    """Counts the partitions that one request creates or deletes."""

    def __init__(self, quotas: ControllerQuotas, limit: Limit | None, *, is_strict: bool) -> None:
        self._quotas = quotas
        self._limit = limit
        self._is_strict = is_strict
        self.throttle_time = timedelta(0)
        """The throttle time of the response."""

    def are_allowed(self, partitions: int) -> bool:
        """Count `partitions` more; return False if the quota is exceeded, which gives error 89."""
        if self._limit is None:
            return True
        wait_ms = self._quotas.spend(self._limit, partitions, is_strict=self._is_strict)
        self.throttle_time = max(self.throttle_time, wait_ms * _MILLISECOND)
        return not (wait_ms and self._is_strict)


class WindowSize(NamedTuple):
    """The length and the number of samples (`quota.window.size.seconds`, `quota.window.num`)."""

    sample_ms: int = 1000
    samples: int = 11

    @property
    def complete_ms(self) -> int:
        """The length of all samples but the current one."""
        return (self.samples - 1) * self.sample_ms


class Sample(NamedTuple):
    """The value counted in one period."""

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
    """Return how long to count nothing until the rate is down to `limit`; 0 if it is not above."""
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
    """The tokens at one time. A new bucket is empty at the Unix epoch, and so full by now."""

    tokens: float = 0.0
    updated_ms: int = 0


def refilled(bucket: Bucket, limit: float, now_ms: int, size: WindowSize) -> Bucket:
    """Return `bucket` with `limit` more tokens per second, up to its capacity."""
    burst = size.samples * size.sample_ms / 1000 * limit
    return Bucket(min(burst, bucket.tokens + limit * (now_ms - bucket.updated_ms) / 1000), now_ms)


def refill_ms(bucket: Bucket, limit: float) -> int:
    """Return the time after which the bucket is no longer below empty."""
    return max(round(min(-bucket.tokens / limit * 1000, LONGEST_MS)), 0)
