"""A message that ends in COMMIT, and the proof in its response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from dualwrite.errors import TransactionDoomedError
from dualwrite.recipes.core.database_errors import sqlstate_of

Refusals = Mapping[str, Callable[[], Exception]]
"""Errors, by the texts that the server quotes, followed by a token, if it did not reach COMMIT."""

IN_FAILED_TRANSACTION: Final = "25P02"
"""The SQLSTATE of a statement that was refused because an earlier one has failed."""

_INVALID_TEXT: Final = "22P02"
"""The SQLSTATE of a failed cast, such as those of `write_and_commit`."""


class CommitMessage(Protocol):
    """A message that ends in COMMIT, and its outcome."""

    @property
    def was_refused(self) -> bool:
        """Whether the server is known not to have reached COMMIT."""

    @property
    def was_given_up(self) -> bool:
        """Whether the server gave up waiting for a synchronous standby but still reported success."""


def refusal_in(error: BaseException, token: str, refusals: Refusals) -> Exception | None:
    """Return the error for a failure that proves that COMMIT was not reached; None if it may have been."""
    sqlstate = sqlstate_of(error)
    if sqlstate == IN_FAILED_TRANSACTION:
        return TransactionDoomedError(
            "the transaction had failed before COMMIT was sent; neither database nor Kafka was changed"
        )
    if sqlstate != _INVALID_TEXT:
        return None
    text = str(error)
    return next((refused() for why, refused in refusals.items() if f"{why} {token}" in text), None)


def assert_committed(status: str | None) -> None:
    """Check the response to COMMIT. Raises TransactionDoomedError if it says that the server rolled back."""
    if status != "COMMIT":
        raise TransactionDoomedError(
            f"PostgreSQL answered COMMIT with {status or 'nothing'}, because the transaction had failed before; "
            "neither database nor Kafka was changed"
        )
