"""Several callers at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ResultT = TypeVar("ResultT")


def in_threads(*works: Callable[[], ResultT]) -> list[ResultT]:
    """Call each in a thread, wait for all, and return what they return. Raises what the first to fail raises."""
    with ThreadPoolExecutor(len(works)) as threads:
        return [done.result() for done in [threads.submit(work) for work in works]]
