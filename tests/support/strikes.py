"""Strike an exception into this thread at each place where CPython can run a signal's handler.

CPython looks for signals when a Python function begins or a generator goes on (RESUME), after a call of C code (CALL),
and where a loop jumps back. A profile function is called at the first two, so its exceptions are raised there; the end
of an `__init__` stands for the call of a class. Places are counted in the frames of our packages alone, or of
SQLAlchemy's too. A loop's jump back is left out: a call comes right before it, with the same facts.
"""

from __future__ import annotations

import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import sqlalchemy as sa

from dualwrite.recipes.sqlalchemy.drivers import here

OURS: Final = (str(Path(__file__).parents[2] / "dualwrite") + "/",)
_SQLALCHEMY: Final = Path(sa.__file__).parent
WITH_SQLALCHEMY: Final = (
    *OURS,
    *(str(_SQLALCHEMY / part) for part in ("engine/base.py", "pool/", "orm/session.py", "orm/state_changes.py")),
)
"""Where SQLAlchemy ends a transaction and gives its connection back."""
_NO_CALLER: Final = ("__del__", "<genexpr>")
"""Whose exceptions reach no caller: a generator that is not used up is "called" once more when it is dropped."""


class StruckError(Exception):
    """The exception of a signal's handler, such as the soft time limit of a task."""


class StruckExit(BaseException):
    """One that no `except Exception` catches, such as KeyboardInterrupt."""


Struck = type[StruckError] | type[StruckExit]
KINDS: Final[tuple[Struck, ...]] = (StruckError, StruckExit)


class Strike:
    """Strikes once, at the place with this number or where this function begins, inside its `with`.

    Without a place it only counts them. `inside`: the beginnings of the files whose frames have places.
    """

    def __init__(self, at: int | str | None = None, kind: Struck = StruckError, inside: tuple[str, ...] = OURS) -> None:
        self._at = at
        self._kind = kind
        self._inside = inside
        self.places = 0
        self.where = ""
        """The place that was struck; empty if there is none with that number."""
        self.raised: BaseException | None = None
        self.is_wrapped = False
        """Whether SQLAlchemy makes a StatementError of it: so it does with an error before it has a cursor."""

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGUSR1, self._handle)
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, self._before)

    def _handle(self, *_: object) -> None:
        self.raised = self._kind(self.where)
        raise self.raised

    def _look(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event not in ("call", "c_return") and (event, code.co_name) != ("return", "__init__"):
            return
        if not code.co_filename.startswith(self._inside) or code.co_name in _NO_CALLER:
            return
        self.places += 1
        is_here = self._at == (code.co_qualname if isinstance(self._at, str) else self.places)
        if is_here and not self.where and not _is_swallowed(frame):
            of = f" of {arg.__qualname__}" if event == "c_return" else ""
            self.is_wrapped = issubclass(self._kind, Exception) and is_of_new_statement(frame)
            self.where = f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}, {event}{of}"
            signal.raise_signal(signal.SIGUSR1)


def _is_swallowed(frame: FrameType | None) -> bool:
    """Return whether no exception leaves this place.

    SQLAlchemy gives a connection back there, an object is collected, or a handler of `logging` formats a line.
    """
    while frame is not None:
        if frame.f_code.co_name in ("_finalize_fairy", "callHandlers") or frame.f_code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False


def is_of_new_statement(frame: FrameType | None) -> bool:
    """Return whether SQLAlchemy makes the context of a statement of the caller here, to which the cursor belongs."""
    is_found = False
    while frame is not None:
        if frame.f_code is here.__code__:
            return False  # a statement of ours
        if frame.f_code.co_name in ("_init_compiled", "_init_statement", "_init_ddl"):
            is_found = is_found or frame.f_code.co_filename.startswith(str(_SQLALCHEMY))
        frame = frame.f_back
    return is_found


def strike(at: int | str, act: Callable[[], object], kind: Struck = StruckError, inside: tuple[str, ...] = OURS) -> str:
    """Strike at a place, if there is one with this number; the error itself must reach the caller. Return where."""
    has_reached = False
    with Strike(at, kind, inside) as struck:
        try:
            act()
        except BaseException as error:  # and forget it: a traceback keeps a block alive whose `__exit__` was not begun
            has_reached = (error.__cause__ if struck.is_wrapped else error) is struck.raised
            if not has_reached:
                raise
        finally:
            struck.raised = None
    assert has_reached is bool(struck.where), f"the exception of {struck.where} did not reach the caller"
    return struck.where


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Note at an error which place was struck before."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"after an exception struck at {where}")
        raise
