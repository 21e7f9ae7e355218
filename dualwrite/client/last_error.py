"""The last thing that went wrong on the way to the brokers: what a caller is told whose time is up."""

from __future__ import annotations

import errno
import os


class LastError:
    """Written by the loop, read by any thread. Times in milliseconds of the producer's clock."""

    def __init__(self) -> None:
        self._last: tuple[float, str] | None = None

    def note(self, now_ms: float, sentence: str) -> None:
        """Something did not work, and will be tried again."""
        self._last = (now_ms, sentence)

    def last(self, since_ms: float = 0.0) -> str | None:
        """The newest one, unless it is older than `since_ms`."""
        last = self._last
        return None if last is None or last[0] < since_ms else last[1]

    def newest(self, other: LastError, since_ms: float = 0.0) -> str | None:
        """The newest one of two places, unless it is older than `since_ms`."""
        notes = [note for note in (self._last, other._last) if note is not None and note[0] >= since_ms]
        return max(notes)[1] if notes else None


def reason_of(error: OSError) -> str:
    """Why a connection could not be made, without the number; event loops word and number it differently."""
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    return error.strerror or str(error)
