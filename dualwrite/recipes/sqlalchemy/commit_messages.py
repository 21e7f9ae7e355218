"""Messages that write the state and commit, where SQLAlchemy sends a COMMIT of PostgreSQL."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

import sqlalchemy as sa

from dualwrite.errors import TransactionDoomedError
from dualwrite.guarded import pass_on_signal
from dualwrite.recipes.sql.commit_message import Refusals, assert_committed, refusal_in
from dualwrite.recipes.sqlalchemy.drivers import DRIVERS_THAT_MARK, driver_connection


class CommitMessage(Protocol):
    """A message that ends in COMMIT; `Connection.commit()` inside a `with` sends it."""

    @property
    def was_given_up(self) -> bool:
        """Whether the server gave up waiting for a synchronous standby but still reported success."""

    was_committed: bool
    was_refused: bool
    """Whether the server is known not to have reached COMMIT."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *raised: Any) -> None: ...


def commit_message(connection: sa.Connection, sql: str, token: str, refusals: Refusals) -> CommitMessage:
    """Return the message for the driver of a Connection. Imports drivers late: they may not be installed."""
    driver, of = driver_connection(connection), connection.dialect.driver
    if of in DRIVERS_THAT_MARK:
        from dualwrite.recipes.psycopg.driver import CommitMessage as OfPsycopg

        return OfPsycopg(driver, sql, token, refusals)
    if of == "asyncpg":
        from dualwrite.recipes.asyncpg.driver import CommitMessage as OfAsyncpg

        return OfAsyncpg(driver, sql, token, refusals)
    return MessageBeforeCommit(sql, token, refusals)


class MessageBeforeCommit:
    """The message for any other driver: it is sent right before the driver's COMMIT, which then has nothing left to do.

    psycopg2 takes the transaction for open until then. Such drivers do not report the server's warnings.
    """

    was_given_up = False

    def __init__(self, sql: str, token: str, refusals: Refusals) -> None:
        self._sql = sql
        self._token = token
        self._refusals = refusals
        self.was_committed = False
        self.was_refused = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: the transaction sends the message itself."""

    def send(self, dbapi_connection: Any) -> None:
        """Send the message; do nothing when repeated."""
        if self.was_committed:
            return
        cursor = dbapi_connection.cursor()
        try:
            cursor.execute(self._sql)
            assert_committed(getattr(cursor, "statusmessage", "COMMIT"))
        except TransactionDoomedError:
            self.was_refused = True
            raise
        except Exception as error:
            pass_on_signal(error)
            refusal = refusal_in(error, self._token, self._refusals)
            if refusal is None:
                raise
            self.was_refused = True
            raise refusal from error
        finally:
            cursor.close()
        self.was_committed = True
