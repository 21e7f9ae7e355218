"""The decorator `@writer.transactional`: a function, or a coroutine function, whose call is a dual write.

@writer.transactional(retries=3)
def place_order(tx: DualTransaction, item: str) -> int:
    order = Order(item=item)
    tx.session.add(order)
    tx.session.flush()
    tx.send("orders", key=str(order.id), value=item)
    return order.id

place_order("lamp")

A call outside all blocks of its writer is a separate dual write, and is repeated if it conflicts with other database
transactions. A call inside a block becomes part of it, in one of the ways of `Inside`.

May import `core`; knows no database library.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager
from functools import wraps
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, TypeVar, get_args, overload

from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.database_errors import is_conflict
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.waiting import entered

Inside = Literal["join", "savepoint", "refuse"]
"""The effect of a call inside another dual write of the same writer."""

_SHORTEST_PAUSE_S: Final = 0.01

P = ParamSpec("P")
SelfT = TypeVar("SelfT")
ResultT = TypeVar("ResultT")
TxT = TypeVar("TxT", bound=DualWrite)

Body = Callable[[Any], Awaitable[Any]]
"""The decorated function with all its arguments except the dual write."""


class _Decorator(Generic[TxT]):
    """The part that both decorators share: their settings, and the steps of a call."""

    def __init__(self, writer: Any, *, retries: int = 0, inside: Inside = "join") -> None:
        """Take a writer of either kind. Raise ConfigError for unknown settings."""
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise ConfigError(f"retries takes a whole number of at least 0, not {retries!r}")
        if inside not in get_args(Inside):
            raise ConfigError(f"inside takes one of {', '.join(get_args(Inside))}, not {inside!r}")
        if inside == "savepoint" and not writer.backend.has_savepoints:
            raise ConfigError(
                'inside="savepoint" is not possible: this store has no savepoints; use "join" or "refuse"'
            )
        self._writer = writer
        self._retries = retries
        self._inside = inside

    async def _run(self, body: Body) -> Any:
        """Run `body` in a dual write, and return its result."""
        outer = self._writer.blocks.current
        if outer is None:
            return await self._run_outermost(body)
        if self._inside == "refuse":
            raise IllegalStateError(
                "this function is a separate dual write and was called inside another one; it did not run: call it "
                'outside, or let it join with inside="join" or inside="savepoint"'
            )
        if self._inside == "savepoint":
            async with entered(outer.savepoint()):
                return await body(outer)
        try:
            return await body(outer)
        except BaseException as error:
            outer.progress.database.doom(error)
            raise

    async def _run_outermost(self, body: Body) -> Any:
        tried = 0
        while True:
            tx: DualWrite | None = None
            try:
                async with entered(self._writer.scope()) as tx:
                    return await body(tx)
            except Exception as error:
                is_certain = tx is not None and tx.outcome is Outcome.ROLLED_BACK
                if tried == self._retries or not is_certain or not is_conflict(error):
                    raise
            # at random, so that calls that conflicted do not conflict again
            await self._writer.backend.waiting.sleep(random.uniform(0, _SHORTEST_PAUSE_S * 2**tried))
            tried += 1


class Transactional(_Decorator[TxT]):
    """The decorator `writer.transactional`: use it as it is, or call it with settings first.

    The function takes the dual write as its parameter `tx`, which is its first, or its second after `self` or `cls`;
    callers omit it. When it returns, both sides are committed, and when it raises, both are rolled back.

    `retries`: how often the function is run again after a conflict with other transactions, that is a serialization
    failure or a deadlock. Only a dual write that is certainly rolled back is repeated: never after OutcomeUnknown, or
    when the database has committed. Side effects of the function elsewhere are repeated too.

    `inside`: the effect of a call inside another dual write of the same writer and thread, which may be a block or
    another decorated function. "join": the call becomes part of the outer dual write, which decides; if the function
    raises, the outer one can only be rolled back, even if the error is caught. "savepoint": the same, but if the
    function raises, only its own changes are undone, on both sides. "refuse": raise IllegalStateError. The `retries` of
    the outermost call apply.

    Raises ConfigError for a function without `tx`, for coroutine functions and for generators, and for "savepoint"
    if the database has no savepoints. So does a call that returns an awaitable, a generator or a context manager made
    of one, whose body would run after the block; both sides are rolled back.
    """

    @overload
    def __call__(self, function: Callable[Concatenate[TxT, P], ResultT], /) -> Callable[P, ResultT]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[SelfT, TxT, P], ResultT], /
    ) -> Callable[Concatenate[SelfT, P], ResultT]: ...

    @overload
    def __call__(self, /, *, retries: int = 0, inside: Inside = "join") -> Transactional[TxT]: ...

    def __call__(self, function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
        return Transactional(self._writer, **settings) if function is None else self._decorated(function)

    def _decorated(self, function: Callable[..., Any]) -> Callable[..., Any]:
        kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
        if any(is_kind(function) for is_kind in kinds):
            raise _returned_too_early(function, "is a coroutine function or a generator")
        signature, position = _without_tx(function)

        @wraps(function)
        def dual_write(*args: Any, **kwargs: Any) -> Any:
            async def body(tx: Any) -> Any:
                return _finished(function, function(*args[:position], tx, *args[position:], **kwargs))

            return blocking.run(self._run(body))

        dual_write.__signature__ = signature  # type: ignore[attr-defined]
        return dual_write


class AsyncTransactional(_Decorator[TxT]):
    """The decorator `writer.transactional` for coroutine functions: use it as it is, or call it with settings first.

    As `Transactional`: the same parameter `tx`, settings, rules and errors. A call is inside another dual write if its
    task is.

    Raises ConfigError for a function without `tx`, and for anything but a coroutine function.
    """

    @overload
    def __call__(
        self, function: Callable[Concatenate[TxT, P], Awaitable[ResultT]], /
    ) -> Callable[P, Coroutine[Any, Any, ResultT]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[SelfT, TxT, P], Awaitable[ResultT]], /
    ) -> Callable[Concatenate[SelfT, P], Coroutine[Any, Any, ResultT]]: ...

    @overload
    def __call__(self, /, *, retries: int = 0, inside: Inside = "join") -> AsyncTransactional[TxT]: ...

    def __call__(self, function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
        return AsyncTransactional(self._writer, **settings) if function is None else self._decorated(function)

    def _decorated(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"{function!r} is not a coroutine function, so it cannot wait for its dual write: write `async def`, "
                "or use a DualWriter"
            )
        signature, position = _without_tx(function)

        @wraps(function)
        async def dual_write(*args: Any, **kwargs: Any) -> Any:
            async def body(tx: Any) -> Any:
                return _finished(function, await function(*args[:position], tx, *args[position:], **kwargs))

            return await self._run(body)

        dual_write.__signature__ = signature  # type: ignore[attr-defined]
        return dual_write


_UNFINISHED: Final = (
    Awaitable,
    GeneratorType,
    AsyncGeneratorType,
    _GeneratorContextManager,
    _AsyncGeneratorContextManager,
)


def _finished(function: Callable[..., Any], result: Any) -> Any:
    """Return the result of a decorated function. Raises ConfigError for one whose body would run after the block.

    `inspect` does not see such a function behind a wrapper, `contextmanager` for one. A task is running already.
    """
    if isinstance(result, _UNFINISHED) and not asyncio.isfuture(result):
        raise _returned_too_early(function, f"returned a {type(result).__name__}, which runs later")
    return result


def _returned_too_early(function: Callable[..., Any], said: str) -> ConfigError:
    return ConfigError(
        f"{function!r} {said}, so its dual write would be committed too early, before its body has run; neither "
        "database nor Kafka was changed: decorate a plain function, or a coroutine function with an AsyncDualWriter"
    )


def _without_tx(function: Callable[..., Any]) -> tuple[inspect.Signature, int]:
    """Return the signature that callers see, and the position of `tx`. Raises ConfigError if there is no `tx`."""
    signature = inspect.signature(function)
    names = list(signature.parameters)
    if "tx" not in names[:2]:
        raise ConfigError(
            f"{function!r} has no parameter for its dual write: name the first one `tx`, or the second one after `self`"
        )
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "tx"]
    return signature.replace(parameters=parameters), names.index("tx")
