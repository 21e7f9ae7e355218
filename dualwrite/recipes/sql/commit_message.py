"""A message that ends in COMMIT, and the proof in its response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from dualwrite.errors import TransactionDoomedError
from dualwrite.guarded import pass_on_signal
from dualwrite.recipes.core.database_errors import sqlstate_of

Refusals = Mapping[str, Callable[[], Exception]]
"""Errors, by the texts that the server quotes, followed by a token, if it did not reach COMMIT."""

IN_FAILED_TRANSACTION: Final = "25P02"
"""The SQLSTATE of a statement that was refused because an earlier one has failed."""

_INVALID_TEXT: Final = "22P02"
"""The SQLSTATE of a failed cast, such as those of `write_and_commit`."""


class CommitMessage:
    """A message that ends in COMMIT, and its outcome. Inside a `with` it takes the place of the driver's own COMMIT.

    `refusals` are errors, by the texts that the server quotes, followed by `token`, if it did not reach COMMIT.
    """

    def __init__(self, connection: Any, sql: str, token: str, refusals: Refusals) -> None:
        self.connection = connection
        self._sql = sql
        self._token = token
        self._refusals = refusals
        self.was_committed = False
        self.was_refused = False
        """Whether the server is known not to have reached COMMIT."""
        self.was_given_up = False
        """Whether the server gave up waiting for a synchronous standby but still reported success."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Let the driver's own COMMIT be sent again, as the end of the `with` does; harmless when repeated."""

    def raise_refusal(self, error: BaseException) -> None:
        """Note whether a failure proves that COMMIT was not reached. Raises the error for a refusal of the message."""
        if isinstance(error, TransactionDoomedError):
            self.was_refused = True
            return
        refusal = refusal_in(error, self._token, self._refusals)
        if refusal is not None:
            self.was_refused = True
            raise refusal from error


def refusal_in(error: BaseException, token: str, refusals: Refusals) -> Exception | None:
    """Return the error for a failure that proves that COMMIT was not reached; None if it may have been."""
    sqlstate = sqlstate_of(error)
    if sqlstate == IN_FAILED_TRANSACTION:
        return TransactionDoomedError(
            "the transaction had failed before COMMIT was sent; neither database nor Kafka was changed: let the error "
            "of the failed statement end the block"
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
            "neither database nor Kafka was changed: let the error of the failed statement end the block"
        )


class MessageBeforeCommit(CommitMessage):
    """The message for any other driver: it is sent right before the driver's COMMIT, which then has nothing left to do.

    psycopg2 takes the transaction for open until then. Such drivers do not report the server's warnings.
    """

    def send(self, dbapi_connection: Any) -> None:
        """Send the message; do nothing when repeated."""
        if self.was_committed:
            return
        cursor = dbapi_connection.cursor()
        try:
            cursor.execute(self._sql)
            assert_committed(getattr(cursor, "statusmessage", "COMMIT"))
        except Exception as error:
            pass_on_signal(error)
            self.raise_refusal(error)
            raise
        finally:
            cursor.close()
        self.was_committed = True
