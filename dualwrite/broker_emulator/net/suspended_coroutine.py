"""Coroutines that are begun in place, so that only what is left of one that really waits costs a task."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SuspendedCoroutine(Generic[T]):
    """What is left of a coroutine that was begun and waits; to be awaited once."""

    __slots__ = ("_coroutine", "_waited_for")

    def __init__(self, coroutine: Coroutine[Any, Any, T], waited_for: Any) -> None:
        self._coroutine = coroutine
        self._waited_for = waited_for

    def __await__(self) -> Generator[Any, Any, T]:
        waited_for = self._waited_for
        try:
            while True:
                try:
                    received = yield waited_for
                except BaseException as error:
                    waited_for = self._coroutine.throw(error)
                else:
                    waited_for = self._coroutine.send(received)
        except StopIteration as end:
            result: T = end.value
            return result

    def close(self) -> None:
        """Give the coroutine up where it waits."""
        self._coroutine.close()


def begin(coroutine: Coroutine[Any, Any, T]) -> SuspendedCoroutine[T] | T:
    """Run `coroutine` as far as it goes without waiting; what is left of it, or its result. Raises what it raises.

    Until it waits it runs in no task of its own, so nothing in it may need `asyncio.current_task()` (as TaskGroup
    and `asyncio.timeout` do).
    """
    try:
        waited_for = coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return SuspendedCoroutine(coroutine, waited_for)


async def finish(rest: SuspendedCoroutine[T]) -> T:
    """`rest` as a coroutine, to make a task of."""
    return await rest
