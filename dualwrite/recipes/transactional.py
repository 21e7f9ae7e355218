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
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypeVar, get_args, overload

from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.recipes.database_conflicts import is_conflict
from dualwrite.recipes.decisions import Outcome

if TYPE_CHECKING:
    from dualwrite.recipes.sqlalchemy import DualTransaction

Inside = Literal["join", "savepoint", "refuse"]
"""What a call does inside another dual write of the same writer."""

_SHORTEST_PAUSE_S: Final = 0.01

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
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise ConfigError(f"retries takes a whole number of at least 0, not {retries!r}")
        if inside not in get_args(Inside):
            raise ConfigError(f"inside takes one of {', '.join(get_args(Inside))}, not {inside!r}")
        self._writer = writer
        self._retries = retries
        self._inside = inside

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
        signature, position = _without_tx(function)

        @wraps(function)
        def dual_write(*args: Any, **kwargs: Any) -> Any:
            return self._run(lambda tx: function(*args[:position], tx, *args[position:], **kwargs))

        dual_write.__signature__ = signature  # type: ignore[attr-defined]
        return dual_write

    def _run(self, body: Callable[[DualTransaction], Any]) -> Any:
        outer = self._writer._blocks.current
        if outer is None:
            return self._run_outermost(body)
        if self._inside == "refuse":
            raise IllegalStateError(
                "this function is a dual write of its own and was called inside another one; it did not run: call it "
                'outside, or let it take part with inside="join" or inside="savepoint"'
            )
        if self._inside == "savepoint":
            with outer.savepoint():
                return body(outer)
        try:
            return body(outer)
        except BaseException as error:
            outer._database.doom(error)
            raise

    def _run_outermost(self, body: Callable[[DualTransaction], Any]) -> Any:
        tried = 0
        while True:
            tx: DualTransaction | None = None
            try:
                with self._writer.transaction() as tx:
                    return body(tx)
            except Exception as error:
                is_certain = tx is not None and tx.outcome is Outcome.ROLLED_BACK
                if tried == self._retries or not is_certain or not is_conflict(error):
                    raise
            # by chance, so that those who got into each other's way do not meet again
            time.sleep(random.uniform(0, _SHORTEST_PAUSE_S * 2**tried))
            tried += 1


def _without_tx(function: Callable[..., Any]) -> tuple[inspect.Signature, int]:
    """The signature that callers see, and where `tx` goes."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(
            f"{function!r} returns before its body has run, so its dual write would be committed too early: decorate a "
            "plain function"
        )
    signature = inspect.signature(function)
    names = list(signature.parameters)
    if "tx" not in names[:2]:
        raise ConfigError(
            f"{function!r} has no place for its dual write: name its first parameter `tx`, or its second after `self`"
        )
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "tx"]
    return signature.replace(parameters=parameters), names.index("tx")
