"""The steps of a dual write on PostgreSQL, on a Connection of SQLAlchemy."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy.exc import DBAPIError

from dualwrite.errors import TransactionEndedInsideError
from dualwrite.recipes.sql import postgres
from dualwrite.recipes.sql.commit_message import Refusals
from dualwrite.recipes.sql.postgres_steps import PostgresSteps
from dualwrite.recipes.sqlalchemy.drivers import (
    assert_holds_locks,
    commit_message,
    driver_connection,
    ended_past_sqlalchemy,
    value_past_sqlalchemy,
)
from dualwrite.recipes.sqlalchemy.port import SqlAlchemyPort


class OnPostgres(SqlAlchemyPort, PostgresSteps):
    """The steps in the transaction of a Connection; only with a dual write on it may COMMIT be sent by a message."""

    errors = (DBAPIError,)
    driver_name = "SQLAlchemy"

    async def _first_row(self, sql: str) -> Sequence[str | None] | None:
        text = await self._past_sqlalchemy(sql, None)
        return None if text is None else (text,)

    async def _added(self, sql: str, values: Mapping[str, str | bytes]) -> str | None:
        text = await self._past_sqlalchemy(sql, values)
        return await super()._added(sql, values) if text is None else text

    async def _past_sqlalchemy(self, sql: str, values: Mapping[str, Any] | None) -> str | None:
        """Return the value of a statement; None if there is none, or if it was not sent."""
        return await value_past_sqlalchemy(self._connection, sql, values, self._carry)

    def _assert_begun(self) -> None:
        assert_holds_locks(self._connection)

    def _ended_past(self) -> TransactionEndedInsideError:
        return ended_past_sqlalchemy(self._connection)

    @property
    def mark(self) -> str:
        mark: str = getattr(driver_connection(self._connection), postgres.MARK_ATTRIBUTE, "")
        return mark

    @cached_property
    def token(self) -> str:
        return self.mark or secrets.token_hex(8)

    @property
    def has_hooks(self) -> bool:
        return self._transaction.has_hooks

    def _commit_by(self, sql: str, refusals: Refusals, *, is_added: bool = False) -> None:
        message = commit_message(self._connection, sql, self.token, refusals)
        self._transaction.decides_by(message, is_added=is_added)

    async def witness(self, transactional_id: str) -> str | None:
        """Read the row without a lock, and write to the log."""
        return await self._scalar(self._pin.sql(postgres.WITNESS), {"id": transactional_id})
