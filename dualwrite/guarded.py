"""Guards around telemetry of dual writes, and around cleaning up: a failure of either replaces no result or error.

A failure of telemetry is logged once, and the work goes on.

An exception that a signal handler raises while telemetry runs, such as Celery's soft time limit, is not a failure of
telemetry: the caller gets it.
"""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from traceback import walk_stack, walk_tb
from types import CodeType, FrameType
from typing import Any, Final, ParamSpec

P = ParamSpec("P")

_log = logging.getLogger(__name__)

_told: Final[set[str]] = set()
"""The places whose failure was logged already."""


def guarded(report: Callable[P, object]) -> Callable[P, None]:
    """Let a function that reports to telemetry end without an error, even if telemetry fails."""

    @wraps(report)
    def call(*given: P.args, **named: P.kwargs) -> None:
        try:
            report(*given, **named)
        except Exception as error:
            tolerate(error, report.__qualname__)

    return call


def tolerate(error: Exception, place: str) -> None:
    """Log a failure of telemetry, the first time at each place. Re-raises an `error` of a signal handler."""
    pass_on_signal(error)
    if place not in _told:
        _told.add(place)
        try:
            _log.warning(
                "telemetry failed (%s): dual writes are not affected, but their metrics or spans are incomplete; this "
                "is logged once",
                place,
                exc_info=error,
            )
        except Exception as failure:  # of a log handler
            pass_on_signal(failure)


@contextmanager
def cleaning_up_after(error: BaseException) -> Iterator[None]:
    """Clean up because of `error`. A failure to do so does not replace `error`: it becomes a note of it."""
    try:
        yield
    except Exception as failure:
        pass_on_signal(failure)
        error.add_note(f"Cleaning up after it failed too: {failure!r}")


def pass_on_signal(error: Exception) -> None:
    """Raise the error that a signal handler raised, if that is `error` or the cause of it.

    For code that otherwise goes on after any error of a library. A library that is struck while it waits for a response
    may fail to clean up, and raise the error of that instead. The functions in a traceback show a handler.
    """
    struck = _struck(error)
    if struck is None:
        return
    context = struck.__context__
    try:
        raise struck
    finally:
        struck.__context__ = context  # not an error whose cause it is: such a cycle keeps the frames alive
        del struck, error  # its traceback keeps this frame


def _struck(error: BaseException) -> BaseException | None:
    """Return the error that a signal handler raised, among an error and its causes."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    for each in _raised_below(error):
        if any(frame.f_code in handlers for frame, _ in walk_tb(each.__traceback__)):
            return _original(each)
    return None


def _original(error: BaseException) -> BaseException:
    """Return the cause of an error that has taken its traceback over, as a StatementError of SQLAlchemy does."""
    cause = error.__cause__
    return error if cause is None or _place(cause) != _place(error) else cause


def _place(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return where an error was raised; nothing if it was not."""
    return [*walk_tb(error.__traceback__)][-1:]


def _raised_below(error: BaseException) -> Iterator[BaseException]:
    """Yield an error that was caught here, and those that were being handled below when it was raised.

    An error that a function on the stack handles, be it the application, is not part of this one.
    """
    yield error
    on_stack = {id(frame) for frame, _ in walk_stack(inspect.currentframe())}
    context = error.__context__
    while context is not None and (trace := context.__traceback__) is not None and id(trace.tb_frame) not in on_stack:
        yield context
        context = context.__context__


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a Python function, or of the one behind a method, a partial or a callable object."""
    while isinstance(handler, partial):
        handler = handler.func
    if not callable(handler):
        return None
    found = (handler, getattr(handler, "__func__", None), type(handler).__call__)
    return next((code for each in found if isinstance(code := getattr(each, "__code__", None), CodeType)), None)
