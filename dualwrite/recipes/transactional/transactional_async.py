"""The decorator `@writer.transactional` of the writers for coroutines: a coroutine function whose call is a dual write.

@writer.transactional(retries=3)
async def place_order(tx: AsyncDualTransaction, item: str) -> int:
    order = Order(item=item)
    tx.session.add(order)
    await tx.session.flush()
    tx.send("orders", key=str(order.id), value=item)
    return order.id

await place_order("lamp")
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from dualwrite.errors import ConfigError
from dualwrite.recipes.core.coordinator import DualWrite
from dualwrite.recipes.transactional.calls import Calls, Inside, without_tx

if TYPE_CHECKING:
    from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction

P = ParamSpec("P")
SelfT = TypeVar("SelfT")
ResultT = TypeVar("ResultT")


class TaskBlocks:
    """The block of a writer that each task is in.

    By the task and not by a context variable, which the tasks that a block starts would inherit: they are not in it,
    as two tasks must not use one Session.
    """

    def __init__(self) -> None:
        self._of_task: weakref.WeakKeyDictionary[asyncio.Task[Any], AsyncDualTransaction] = weakref.WeakKeyDictionary()

    @property
    def current(self) -> AsyncDualTransaction | None:
        """That of this task, the innermost one."""
        task = asyncio.current_task()
        return None if task is None else self._of_task.get(task)

    @contextmanager
    def inside(self, tx: AsyncDualTransaction) -> Iterator[None]:
        """While the block of `tx` runs."""
        task = asyncio.current_task()
        if task is None:  # a forked child, or another kind of loop: nobody can be inside
            yield
            return
        outer = self._of_task.get(task)
        self._of_task[task] = tx
        try:
            yield
        finally:
            if outer is None:
                del self._of_task[task]
            else:
                self._of_task[task] = outer


class _Blocks(Protocol):
    @property
    def current(self) -> AsyncDualTransaction | None: ...


class _Writer(Protocol):
    """An AsyncDualWriter, or an AsyncDualWriterPool."""

    @property
    def _blocks(self) -> _Blocks: ...

    def transaction(self) -> AbstractAsyncContextManager[AsyncDualTransaction]: ...


class _BlocksOfTasks:
    """`Blocks` of a writer for tasks."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer

    @property
    def current(self) -> DualWrite | None:
        return self._writer._blocks.current

    def begin(self) -> AbstractAsyncContextManager[DualWrite]:
        return self._writer.transaction()

    def savepoint(self, outer: DualWrite) -> AbstractAsyncContextManager[object]:
        return cast("AsyncDualTransaction", outer).savepoint()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class AsyncTransactional:
    """What `writer.transactional` is: to be used as it is, or called with settings first.

    As `Transactional`, for coroutine functions: the same parameter `tx`, settings, rules and errors. A call is inside
    another dual write if its task is.

    Raises ConfigError for a function without `tx`, and for anything but a coroutine function.
    """

    def __init__(self, writer: _Writer, *, retries: int = 0, inside: Inside = "join") -> None:
        self._writer = writer
        self._calls = Calls(_BlocksOfTasks(writer), retries=retries, inside=inside)

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncDualTransaction, P], Awaitable[ResultT]], /
    ) -> Callable[P, Coroutine[Any, Any, ResultT]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[SelfT, AsyncDualTransaction, P], Awaitable[ResultT]], /
    ) -> Callable[Concatenate[SelfT, P], Coroutine[Any, Any, ResultT]]: ...

    @overload
    def __call__(self, /, *, retries: int = 0, inside: Inside = "join") -> AsyncTransactional: ...

    def __call__(self, function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
        return AsyncTransactional(self._writer, **settings) if function is None else self._decorated(function)

    def _decorated(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"{function!r} is no coroutine function, which could wait for its dual write: write `async def`, or "
                "use a DualWriter"
            )
        signature, position = without_tx(function)

        @wraps(function)
        async def dual_write(*args: Any, **kwargs: Any) -> Any:
            return await self._calls.run(lambda tx: function(*args[:position], tx, *args[position:], **kwargs))

        dual_write.__signature__ = signature  # type: ignore[attr-defined]
        return dual_write
