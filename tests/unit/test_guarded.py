"""The exception of a signal's handler, found in an error that a library raised because of it, or after it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from dualwrite.guarded import pass_on_signal


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


def test_a_signal_that_the_application_handles_is_not_raised_again() -> None:
    with pytest.raises(TimeLimitError) as handled:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TimeLimitError:
            tolerate(is_struck=False)
            raise
    assert handled.value.__context__ is None
