"""Leases of transactional ids in a table of a PostgreSQL that psycopg reaches; blocking or awaited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import psycopg

from dualwrite.recipes.core.database_errors import is_conflict
from dualwrite.recipes.psycopg.adapter import PsycopgDatabase, PsycopgTransaction, TableFile
from dualwrite.recipes.sql.lease_statements import LEASE_TABLE, POSTGRES_NOW_MS, Steps, TableLeases
from dualwrite.recipes.sql.pinned_tables import PinnedTables

ResultT = TypeVar("ResultT")


class _Transaction:
    """`LeaseTransaction` on psycopg."""

    def __init__(self, transaction: PsycopgTransaction, pinned: PinnedTables) -> None:
        self._transaction = transaction
        self._pinned = pinned

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return await self._transaction.rows(self._pinned.sql(sql), values)

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        return await self._transaction.changed(self._pinned.sql(sql), values)

    async def has_table(self, name: str) -> bool:
        return await self._transaction.has_table(self._pinned.sql(name))


class PsycopgLeases(TableLeases):
    """`Leases` in the table, which `pool_schema.sql` creates."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(
        self, database: PsycopgDatabase, *, prefix: str, owner: str, lease_ms: int, create_table: bool
    ) -> None:
        super().__init__(prefix=prefix, owner=owner, lease_ms=lease_ms, now_ms=POSTGRES_NOW_MS)
        self._database = database
        self._table = TableFile(LEASE_TABLE, "pool_schema.sql", create=create_table)
        self._pinned: PinnedTables | None = None

    def _was_beaten(self, error: Exception) -> bool:
        return isinstance(error, psycopg.errors.IntegrityError) or is_conflict(error)

    async def _in_transaction(self, steps: Steps[ResultT]) -> ResultT:
        if self._pinned is None:
            self._pinned = await self._database.ensure_table(self._table)
        pinned = self._pinned
        return await self._database.in_transaction(lambda transaction: steps(_Transaction(transaction, pinned)))
