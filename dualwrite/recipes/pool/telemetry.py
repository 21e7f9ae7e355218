"""The pools of transactional ids of this process, for whoever asks what they do now: the gauges of `telemetry.py`."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

    from dualwrite.recipes.pool.status import PoolStatus


class ObservedPool(Protocol):
    """A pool of this process."""

    @property
    def prefix(self) -> str: ...

    def status(self) -> PoolStatus: ...

    @property
    def is_of_this_process(self) -> bool: ...


# By id() of the pool: a dictionary can be copied while other threads and the garbage collector change it.
_pools: dict[int, weakref.ref[ObservedPool]] = {}


def observe(pool: ObservedPool) -> None:
    """From now on, as long as it lives, or until `forget`."""
    key = id(pool)
    _pools[key] = weakref.ref(pool, lambda _: _pools.pop(key, None))


def forget(pool: ObservedPool) -> None:
    """It is closed."""
    _pools.pop(id(pool), None)


def slots(options: CallbackOptions) -> Iterable[Observation]:
    """How many there are, by state."""
    return _sums(
        lambda status: {"in_use": status.in_use, "idle": status.idle, "set_aside": len(status.set_aside)}, "state"
    )


def waiting(options: CallbackOptions) -> Iterable[Observation]:
    """How many blocks wait for a slot."""
    return _sums(lambda status: {"": status.waiting}, None)


def _sums(numbers: Callable[[PoolStatus], dict[str, int]], attribute: str | None) -> Iterable[Observation]:
    """Over all pools of this process, by prefix: two with the same would be one point told twice."""
    from opentelemetry.metrics import Observation

    sums: Counter[tuple[str, str]] = Counter()
    for pool in [found for each in list(_pools.values()) if (found := each()) is not None]:
        if pool.is_of_this_process:
            sums.update({(pool.prefix, name): number for name, number in numbers(pool.status()).items()})
    return [
        Observation(number, {"prefix": prefix} | ({attribute: name} if attribute else {}))
        for (prefix, name), number in sums.items()
    ]
