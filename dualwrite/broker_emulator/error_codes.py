"""Kafka's error codes: a fast name for the code that every request reads, and codes that depend on the version.

`RefusedError` carries one from the check of a request to the response.

Until Python 3.12, reading a member of an enum class takes as long as six function calls: the `__getattr__` of its
metaclass keeps the interpreter from caching the member's place. Modules on the path of every request therefore bind the
members that they need to names of their own.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

NO_ERROR: Final = ErrorCode.none


class RefusedError(Exception):
    """A request, or one of its elements, is refused with this error and changes nothing."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or error.name)
        self.error = error
        self.message = message
