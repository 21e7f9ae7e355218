"""Calls that are dual writes, step by step; once for functions and for coroutine functions.

A call outside every block of its writer is a dual write of its own, tried again where the database refused it because
of others. A call inside one is a part of that, in one of the ways of `Inside`.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, Protocol, get_args

from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.recipes.core.coordinator import DualWrite
from dualwrite.recipes.core.database_errors import is_conflict
from dualwrite.recipes.core.decisions import Outcome

Inside = Literal["join", "savepoint", "refuse"]
"""What a call does inside another dual write of the same writer."""

_SHORTEST_PAUSE_S: Final = 0.01

Body = Callable[[Any], Awaitable[Any]]
"""The decorated function with all its arguments but the dual write."""


class Blocks(Protocol):
    """The blocks of one writer; entering blocks where the writer does."""

    @property
    def current(self) -> DualWrite | None:
        """The one that the caller is in, the innermost."""

    def begin(self) -> AbstractAsyncContextManager[DualWrite]:
        """A dual write of its own."""

    def savepoint(self, outer: DualWrite) -> AbstractAsyncContextManager[object]:
        """A part of `outer` that may fail by itself."""

    async def sleep(self, seconds: float) -> None: ...


class Calls:
    """Of functions with these settings. Raises ConfigError for settings that are none."""

    def __init__(self, blocks: Blocks, *, retries: int, inside: Inside) -> None:
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise ConfigError(f"retries takes a whole number of at least 0, not {retries!r}")
        if inside not in get_args(Inside):
            raise ConfigError(f"inside takes one of {', '.join(get_args(Inside))}, not {inside!r}")
        self._blocks = blocks
        self._retries = retries
        self._inside = inside

    async def run(self, body: Body) -> Any:
        """What `body` returns."""
        outer = self._blocks.current
        if outer is None:
            return await self._run_outermost(body)
        if self._inside == "refuse":
            raise IllegalStateError(
                "this function is a dual write of its own and was called inside another one; it did not run: call it "
                'outside, or let it take part with inside="join" or inside="savepoint"'
            )
        if self._inside == "savepoint":
            async with self._blocks.savepoint(outer):
                return await body(outer)
        try:
            return await body(outer)
        except BaseException as error:
            outer._database.doom(error)
            raise

    async def _run_outermost(self, body: Body) -> Any:
        tried = 0
        while True:
            tx: DualWrite | None = None
            try:
                async with self._blocks.begin() as tx:
                    return await body(tx)
            except Exception as error:
                is_certain = tx is not None and tx.outcome is Outcome.ROLLED_BACK
                if tried == self._retries or not is_certain or not is_conflict(error):
                    raise
            # by chance, so that those who got into each other's way do not meet again
            await self._blocks.sleep(random.uniform(0, _SHORTEST_PAUSE_S * 2**tried))
            tried += 1


def without_tx(function: Callable[..., Any]) -> tuple[inspect.Signature, int]:
    """The signature that callers see, and where `tx` goes. Raises ConfigError where there is no place for it."""
    signature = inspect.signature(function)
    names = list(signature.parameters)
    if "tx" not in names[:2]:
        raise ConfigError(
            f"{function!r} has no place for its dual write: name its first parameter `tx`, or its second after `self`"
        )
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "tx"]
    return signature.replace(parameters=parameters), names.index("tx")
