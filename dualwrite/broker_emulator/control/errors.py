"""What is answered to a request that cannot be done: a status, a sentence, and what would have been right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus


class ControlError(Exception):
    """An answer that is an error. `known`: what could have been named instead of what was."""

    def __init__(self, status: HTTPStatus, code: str, message: str, known: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.known = tuple(known)


def bad_request(message: str, known: Iterable[str] = (), code: str = "bad-request") -> ControlError:
    """What was sent can never mean anything."""
    return ControlError(HTTPStatus.BAD_REQUEST, code, message, known)


def not_found(message: str, known: Iterable[str] = ()) -> ControlError:
    """What was named is not there."""
    return ControlError(HTTPStatus.NOT_FOUND, "not-found", message, known)


@contextmanager
def as_conflict() -> Iterator[None]:
    """Let what raises ValueError be answered as a conflict, with its sentence."""
    try:
        yield
    except ValueError as error:
        raise conflict(str(error)) from None


def conflict(message: str, code: str = "conflict") -> ControlError:
    """It cannot be done in the state that the emulator is in."""
    return ControlError(HTTPStatus.CONFLICT, code, message)
