"""Long work in slices: an event loop that serves many clients must not be held up by the request of one.

A request of ordinary size is handled in one piece and costs nothing more. Where a request names ten thousands of
things, or a group, a topic or a cluster has as many, the work pauses every few milliseconds, and other connections are
served in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from time import perf_counter_ns
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

SLICE_NS: Final = 5_000_000
"""How long work may go on before others have a turn."""
_ITEMS_PER_LOOK: Final = 32
"""Items between two looks at the clock."""


async def mapped(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return what `function` makes of each item, in order. Nothing else may change `items` meanwhile."""
    following: Iterator[T] = iter(items)
    results = [function(item) for item in islice(following, _ITEMS_PER_LOOK)]
    if len(results) < _ITEMS_PER_LOOK:
        return results
    while True:
        if not _take_slice(function, following, results):
            return results
        await asyncio.sleep(0)


class Pace:
    """Keeps a loop that has to wait now and then from going on for longer than a slice in one piece."""

    def __init__(self) -> None:
        self._ends_ns = perf_counter_ns() + SLICE_NS

    async def keep(self) -> None:
        """Let others run if a slice of time has passed; call it once for each item."""
        if perf_counter_ns() > self._ends_ns:
            await asyncio.sleep(0)
            self._ends_ns = perf_counter_ns() + SLICE_NS


async def selected(test: Callable[[T], bool], items: Iterable[T]) -> list[T]:
    """Return the items that pass `test`, in order."""
    given = list(items)
    passed = await mapped(test, given)
    return [item for item, passes in zip(given, passed, strict=True) if passes]


def _take_slice(function: Callable[[T], R], items: Iterator[T], results: list[R]) -> bool:
    """Work for one slice of time; return whether items may be left."""
    ends_ns = perf_counter_ns() + SLICE_NS
    for index, item in enumerate(items, 1):
        results.append(function(item))
        if index % _ITEMS_PER_LOOK == 0 and perf_counter_ns() > ends_ns:
            return True
    return False
