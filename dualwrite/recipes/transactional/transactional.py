"""The decorator `@writer.transactional`: a function whose call is a dual write.

@writer.transactional(retries=3)
def place_order(tx: DualTransaction, item: str) -> int:
    order = Order(item=item)
    tx.session.add(order)
    tx.session.flush()
    tx.send("orders", key=str(order.id), value=item)
    return order.id

place_order("lamp")
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from dualwrite.errors import ConfigError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.coordinator import DualWrite
from dualwrite.recipes.transactional.calls import Calls, Inside, without_tx

if TYPE_CHECKING:
    from dualwrite.recipes.sqlalchemy.writer import DualTransaction

P = ParamSpec("P")
SelfT = TypeVar("SelfT")
ResultT = TypeVar("ResultT")


class OpenBlocks:
    """The block of a writer that each thread is in."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    @property
    def current(self) -> DualTransaction | None:
        """That of this thread, the innermost one."""
        tx: DualTransaction | None = getattr(self._of_thread, "tx", None)
        return tx

    @contextmanager
    def inside(self, tx: DualTransaction) -> Iterator[None]:
        """While the block of `tx` runs."""
        outer, self._of_thread.tx = self.current, tx
        try:
            yield
        finally:
            self._of_thread.tx = outer


class _Writer(Protocol):
    """A DualWriter, or a DualWriterPool."""

    _blocks: OpenBlocks

    def transaction(self) -> AbstractContextManager[DualTransaction]: ...


class _ThreadBlocks:
    """`Blocks` of a writer for threads, which wait."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer

    @property
    def current(self) -> DualWrite | None:
        return self._writer._blocks.current

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[DualWrite]:
        with self._writer.transaction() as tx:
            yield tx

    @asynccontextmanager
    async def savepoint(self, outer: DualWrite) -> AsyncIterator[object]:
        with cast("DualTransaction", outer).savepoint() as part:
            yield part

    async def sleep(self, seconds: float) -> None:
        await blocking.sleep(seconds)


class Transactional:
    """What `writer.transactional` is: to be used as it is, or called with settings first.

    The function takes the dual write as its parameter `tx`, which is its first, or its second after `self` or `cls`;
    callers leave it out. When it returns, both sides are committed, and when it raises, both are rolled back.

    `retries`: how often the function is run again where the database refused because of others, that is after a
    serialization failure or a deadlock. Only what is rolled back for certain is repeated: nothing is after
    OutcomeUnknown, or when the database has committed. What the function did elsewhere is done again.

    `inside`: what a call inside another dual write of the same writer and thread does, be that one a block or such a
    function too. "join": it is a part of that one, which decides, and which can only be rolled back if the function
    raises, even where that is caught. "savepoint": the same, but if it raises, only what it did itself is undone, on
    both sides. "refuse": IllegalStateError. `retries` are those of the outermost call.

    Raises ConfigError for a function without `tx`, for coroutine functions and for generators.
    """

    def __init__(self, writer: _Writer, *, retries: int = 0, inside: Inside = "join") -> None:
        self._writer = writer
        self._calls = Calls(_ThreadBlocks(writer), retries=retries, inside=inside)

    @overload
    def __call__(self, function: Callable[Concatenate[DualTransaction, P], ResultT], /) -> Callable[P, ResultT]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[SelfT, DualTransaction, P], ResultT], /
    ) -> Callable[Concatenate[SelfT, P], ResultT]: ...

    @overload
    def __call__(self, /, *, retries: int = 0, inside: Inside = "join") -> Transactional: ...

    def __call__(self, function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
        return Transactional(self._writer, **settings) if function is None else self._decorated(function)

    def _decorated(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigError(
                f"{function!r} returns before its body has run, so its dual write would be committed too early: "
                "decorate a plain function, or a coroutine function with an AsyncDualWriter"
            )
        signature, position = without_tx(function)

        @wraps(function)
        def dual_write(*args: Any, **kwargs: Any) -> Any:
            async def body(tx: DualTransaction) -> Any:
                return function(*args[:position], tx, *args[position:], **kwargs)

            return blocking.run(self._calls.run(body))

        dual_write.__signature__ = signature  # type: ignore[attr-defined]
        return dual_write
