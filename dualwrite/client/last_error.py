"""The last error on the way to the brokers, which explains why a call timed out."""

from __future__ import annotations

import errno
import os


class LastError:
    """The last error that was retried. Written by the loop, read by any thread; times in milliseconds."""

    def __init__(self) -> None:
        self._last: tuple[float, str] | None = None

    def note(self, now_ms: float, sentence: str) -> None:
        """Note an error whose cause will be retried."""
        self._last = (now_ms, sentence)

    def last(self, since_ms: float = 0.0) -> str | None:
        """Return the last error, unless it is older than `since_ms`."""
        last = self._last
        return None if last is None or last[0] < since_ms else last[1]

    def newest(self, other: LastError, since_ms: float = 0.0) -> str | None:
        """Return the later one of two last errors, unless it is older than `since_ms`."""
        notes = [note for note in (self._last, other._last) if note is not None and note[0] >= since_ms]
        return max(notes)[1] if notes else None


def reason_of(error: OSError) -> str:
    """Return why a connection failed, without the error number: event loops word and number it differently."""
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    return error.strerror or str(error)
