"""Tracebacks of failed tests without the insides of dualwrite, so that the last line shown is the user's."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Final

import pytest

_ROOMS: Final = ("dualwrite", "spark_sink")
_USERS: Final = ("dualwrite.testing.conformance.test_",)
"""Modules of dualwrite that are tests."""
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib")


def hide_internals(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Hide dualwrite's own frames, and those of libraries that it calls, from the reports of an exception.

    Functions that dualwrite calls back are the user's again. An exception that has nothing else keeps its frames.
    Debuggers still see all of them.
    """
    for each in _causes(excinfo.value):
        if each is not excinfo.value and each.__traceback__ is not None:
            each.__traceback__ = _shortened(each.__traceback__) or each.__traceback__
    shortened = _shortened(excinfo.tb)
    if shortened is not None:
        # pytest cuts its own frames by following `tb_next`: a list without the hidden entries would not be enough
        excinfo.traceback = type(excinfo.traceback)(shortened)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and everything that it came from, each once."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        left += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions


def _shortened(traceback: TracebackType) -> TracebackType | None:
    """Return the traceback with its visible frames only; None if there are none."""
    shortened: TracebackType | None = None
    for entry in reversed(list(_visible(traceback))):
        shortened = TracebackType(shortened, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shortened


def _visible(traceback: TracebackType | None) -> Iterator[TracebackType]:
    is_inside = False
    while traceback is not None:
        frame = traceback.tb_frame
        is_inside = _is_own(frame) or (is_inside and _is_library(frame))
        if not is_inside:
            yield traceback
        traceback = traceback.tb_next


def _is_own(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in _ROOMS and not name.startswith(_USERS)


def _is_library(frame: FrameType) -> bool:
    """Return whether a frame is of an installed package or of Python itself."""
    path = frame.f_code.co_filename
    return "site-packages" in path or path.startswith(("<frozen", _STANDARD_LIBRARY))
