"""Errors sent as responses: an HTTP status, a code, a message, and the valid names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus


class ControlError(Exception):
    """An error response. `known` lists the valid names if the request had an unknown one."""

    def __init__(self, status: HTTPStatus, code: str, message: str, known: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.known = tuple(known)


def bad_request(message: str, known: Iterable[str] = (), code: str = "bad-request") -> ControlError:
    """Return a 400: the request is invalid in any state of the emulator."""
    return ControlError(HTTPStatus.BAD_REQUEST, code, message, known)


def not_found(message: str, known: Iterable[str] = ()) -> ControlError:
    """Return a 404: the request names something that does not exist."""
    return ControlError(HTTPStatus.NOT_FOUND, "not-found", message, known)


@contextmanager
def as_conflict() -> Iterator[None]:
    """Turn a ValueError raised inside the block into a 409 with its message."""
    try:
        yield
    except ValueError as error:
        raise conflict(str(error)) from None


def conflict(message: str, code: str = "conflict") -> ControlError:
    """Return a 409: the request is valid, but not in the current state of the emulator."""
    return ControlError(HTTPStatus.CONFLICT, code, message)
