"""Coroutines that start without a task, and get one only if they really wait."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar, Union

T = TypeVar("T")

Soon = Union[T, Coroutine[Any, Any, T]]  # noqa: UP007  # a generic alias needs `Union` until Python 3.12
"""A result or, if it is not there yet, the coroutine that returns it.

For calls that almost never wait and are on the path of every transaction: a coroutine costs as much as five calls.
"""


class SuspendedCoroutine(Generic[T]):
    """The rest of a started coroutine that waits; await it once."""

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
        """Abandon the coroutine where it waits."""
        self._coroutine.close()


def begin(coroutine: Coroutine[Any, Any, T]) -> SuspendedCoroutine[T] | T:
    """Run `coroutine` until it waits or ends; return its rest or its result. Raises the error of the coroutine.

    Until it waits it runs outside of a task of its own, so it must not need `asyncio.current_task()` before (as
    TaskGroup and `asyncio.timeout` do).
    """
    try:
        waited_for = coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return SuspendedCoroutine(coroutine, waited_for)


async def finish(rest: SuspendedCoroutine[T]) -> T:
    """Await `rest`: a coroutine from which a task can be created."""
    return await rest
