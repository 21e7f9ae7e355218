"""The exception of a signal's handler, found in an error that a library raised because of it, or after it."""

from __future__ import annotations

import gc
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final

import pytest
import sqlalchemy as sa

from dualwrite.client.records.send_arguments import serialize_with
from dualwrite.client.transactions.states import ProducerState
from dualwrite.guarded import pass_on_signal
from dualwrite.partitioners import partitioning
from dualwrite.producer import Transaction
from dualwrite.recipes.core import blocking
from dualwrite.recipes.sqlalchemy.drivers import here, terminate


class TimeLimitError(Exception):
    """Raised by the handler of a signal."""


class LibraryError(Exception):
    """Raised where a library fails to clean up."""


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    def strike(*_: object) -> None:
        raise TimeLimitError

    before = signal.signal(signal.SIGUSR1, strike)
    yield
    signal.signal(signal.SIGUSR1, before)


def library(*, is_struck: bool) -> None:
    """Fail, and once more while cleaning up."""
    try:
        if is_struck:
            signal.raise_signal(signal.SIGUSR1)
        raise LibraryError("the first")
    except Exception:
        raise LibraryError("the second") from None


def tolerate(*, is_struck: bool) -> None:
    try:
        library(is_struck=is_struck)
    except Exception as error:
        pass_on_signal(error)


def test_a_signal_behind_the_error_of_a_library_reaches_the_caller() -> None:
    with pytest.raises(TimeLimitError):
        tolerate(is_struck=True)


def test_an_error_of_a_library_alone_is_tolerated() -> None:
    tolerate(is_struck=False)


@pytest.mark.usefixtures("without_collector")
def test_an_error_that_is_passed_on_keeps_no_frame_alive() -> None:
    """A frame may hold a cursor or a connection."""
    held: list[weakref.ref[object]] = []

    class Resource: ...

    def use() -> None:
        resource = Resource()
        held.append(weakref.ref(resource))
        struck()

    def wrap() -> None:
        try:
            use()
        except TimeLimitError as error:
            raise LibraryError().with_traceback(error.__traceback__) from error

    with suppress(TimeLimitError):
        blocking.run(here(wrap))
    assert [resource() for resource in held] == [None]


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_signal_that_the_application_handles_is_not_raised_again() -> None:
    with pytest.raises(TimeLimitError) as handled:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TimeLimitError:
            tolerate(is_struck=False)
            raise
    assert handled.value.__context__ is None


# ---- where an error of something else is tolerated, or is raised as ours --------------------------------------------


def struck(*_: object, **__: object) -> None:
    signal.raise_signal(signal.SIGUSR1)


def serializes() -> None:
    serialize = serialize_with("value", struck)
    assert serialize is not None
    serialize("topic", b"", [])


def chooses_a_partition() -> None:
    by_record = partitioning(struck).by_record  # type: ignore[arg-type]
    assert by_record is not None
    by_record("topic", None, None, 1)


def aborts_a_block() -> None:
    producer: Any = SimpleNamespace(
        state=ProducerState.IN_TRANSACTION, begin_transaction=lambda: None, abort_transaction=struck
    )
    with Transaction(producer):
        raise LibraryError


def terminates_a_connection() -> None:
    dialect = sa.create_engine("postgresql+psycopg://").dialect
    dialect.do_terminate = struck  # type: ignore[method-assign]
    terminate(dialect, object())


def is_wrapped_by_sqlalchemy() -> None:
    """An error without a cursor becomes the cause of another, which takes its traceback over."""
    with sa.create_engine("sqlite://").connect() as connection:
        blocking.run(here(lambda: connection.scalar(sa.select(sa.bindparam("a", 1, type_=Struck())))))


class Struck(sa.types.TypeDecorator[int]):
    impl = sa.Integer
    cache_ok = True
    process_bind_param = struck


STRUCK: Final[list[Callable[[], None]]] = [
    serializes,
    chooses_a_partition,
    aborts_a_block,
    terminates_a_connection,
    is_wrapped_by_sqlalchemy,
]


@pytest.mark.parametrize("act", STRUCK)
def test_a_signal_reaches_the_caller_as_it_was_raised(act: Callable[[], None]) -> None:
    with pytest.raises(TimeLimitError):
        act()
