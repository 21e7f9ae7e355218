"""One call of the application that Kafka has to answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dualwrite.errors import DualWriteError


class Operation:
    """Whether a call has ended, and how; the one place where a waiting caller hears of it.

    `name` and `argument` identify the call: after a timeout only the same call may be repeated, and it joins this one.
    """

    __slots__ = ("_listeners", "argument", "done", "error", "name")

    def __init__(self, name: str, argument: Any = None) -> None:
        self.name: Final = name
        self.argument: Final = argument
        self.done = False
        self.error: DualWriteError | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def awaited(self) -> bool:
        """Whether a caller is waiting, who will hear how it ends."""
        return bool(self._listeners)

    def is_same_call(self, name: str, argument: Any) -> bool:
        """Whether a repeated call means this operation."""
        return self.name == name and bool(self.argument == argument)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when this ends, at once if it has."""
        if self.done:
            listener()
        else:
            self.error = None
            self._listeners.append(listener)

    def stop_listening(self, listener: Callable[[], None]) -> None:
        """The caller gave up waiting."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def interrupt(self, error: DualWriteError) -> None:
        """It goes on, but nobody is to wait for it: `error` says why. Whoever repeats the call joins it."""
        if self._listeners:
            self.error = error
            self._tell()

    def end(self, error: DualWriteError | None = None) -> None:
        """It ended: well, or with `error`."""
        if self.done:
            raise AssertionError(f"{self.name} ended twice")
        self.done = True
        self.error = error
        self._tell()

    def _tell(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()
