"""The outbox of a database, and the diversion of a pool to it, by whichever way its statements reach the server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from dualwrite.recipes.core.own_transactions import in_own_transaction
from dualwrite.recipes.core.store import Backlog
from dualwrite.recipes.sql.outbox_statements import MAY_VACUUM, VACUUM
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE, OutboxSql
from dualwrite.recipes.sql.pinned_tables import Pin


class DatabaseWithOutbox(ABC):
    """`OutboxDatabase` but for what needs a driver. The transactions that it is given, it has begun."""

    errors: tuple[type[Exception], ...]

    @property
    @abstractmethod
    def _outbox_sql(self) -> OutboxSql: ...

    @abstractmethod
    def _located(self) -> Pin:
        """Return the location of our tables."""

    @abstractmethod
    def _was_inserted_by_others(self, error: Exception) -> bool:
        """Return whether another process inserted the same row at the same moment."""

    @abstractmethod
    async def _one_row(self, sql: str, values: Mapping[str, Any]) -> Sequence[Any]:
        """Execute a SELECT on our tables, in a transaction of its own, and return its only row."""

    @abstractmethod
    async def _outside_transactions(self, sql: str) -> None:
        """Execute a statement that is not allowed in a transaction."""

    @abstractmethod
    async def begin(self) -> Any: ...

    async def prepare_diversion(self, name: str) -> None:
        async def create(database: Any) -> None:
            await database.diversion(name).create()
            await database.commit()

        try:
            await in_own_transaction(self.begin, create)
        except self.errors as error:
            if not self._was_inserted_by_others(error):
                raise

    async def has_waiting(self, transactional_id: str) -> bool:
        (found,) = await self._one_row(self._outbox_sql.has_waiting, {"id": transactional_id})
        return bool(found)

    async def backlog(self, transactional_id: str) -> Backlog:
        return Backlog(*await self._one_row(self._outbox_sql.backlog, {"id": transactional_id}))

    async def vacuum_outbox(self) -> None:
        if not self._outbox_sql.is_vacuumed:
            return
        pin = self._located()
        (may,) = await self._one_row(MAY_VACUUM, {"name": pin.sql(OUTBOX_TABLE)})
        if may:
            await self._outside_transactions(pin.sql(VACUUM))
