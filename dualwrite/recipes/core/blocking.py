"""Run coroutines without a loop; they never suspend, because everything that they call blocks."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def run(steps: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run `steps`; return their result, or raise their exception."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    steps.close()
    raise AssertionError(f"{steps!r} waits for an event loop, but may make only blocking calls")


async def sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - code here has no event loop to block
