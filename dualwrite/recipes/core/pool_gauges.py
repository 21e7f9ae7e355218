"""The gauges of the pools of transactional ids in this process, which `telemetry.py` registers with OpenTelemetry."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation


class ObservedStatus(Protocol):
    """The numbers that the gauges show of one pool."""

    @property
    def in_use(self) -> int: ...
    @property
    def idle(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def set_aside(self) -> tuple[str, ...]: ...


class ObservedPool(Protocol):
    """A pool of this process."""

    @property
    def prefix(self) -> str: ...

    def status(self) -> ObservedStatus: ...

    @property
    def is_of_this_process(self) -> bool: ...


# By id() of the pool: a dictionary can be copied while other threads and the garbage collector change it.
_pools: dict[int, weakref.ref[ObservedPool]] = {}


def observe(pool: ObservedPool) -> None:
    """Show `pool` in the gauges for as long as it lives, or until `forget`."""
    key = id(pool)
    _pools[key] = weakref.ref(pool, lambda _: _pools.pop(key, None))


def forget(pool: ObservedPool) -> None:
    """Stop showing a pool that is closed."""
    _pools.pop(id(pool), None)


def slots(options: CallbackOptions) -> Iterable[Observation]:
    """Return the number of slots by prefix and state."""
    return _sums(
        lambda status: {"in_use": status.in_use, "idle": status.idle, "set_aside": len(status.set_aside)}, "state"
    )


def waiting(options: CallbackOptions) -> Iterable[Observation]:
    """Return the number of blocks that wait for a slot, by prefix."""
    return _sums(lambda status: {"": status.waiting}, None)


def _sums(numbers: Callable[[ObservedStatus], dict[str, int]], attribute: str | None) -> Iterable[Observation]:
    """Add the pools of this process up by prefix: two observations of one prefix would be one point reported twice."""
    from opentelemetry.metrics import Observation

    sums: Counter[tuple[str, str]] = Counter()
    for pool in [found for each in list(_pools.values()) if (found := each()) is not None]:
        if pool.is_of_this_process:
            sums.update({(pool.prefix, name): number for name, number in numbers(pool.status()).items()})
    return [
        Observation(number, {"prefix": prefix} | ({attribute: name} if attribute else {}))
        for (prefix, name), number in sums.items()
    ]
