"""Leases of transactional ids in a table of a PostgreSQL that psycopg reaches; blocking or awaited."""

from __future__ import annotations

from typing import TypeVar

import psycopg

from dualwrite.recipes.database_conflicts import is_conflict
from dualwrite.recipes.psycopg_transaction import PsycopgDatabase, TableFile
from dualwrite.recipes.table_leases import LEASE_TABLE, POSTGRES_NOW_MS, Steps, TableLeases

ResultT = TypeVar("ResultT")


class PsycopgLeases(TableLeases):
    """`Leases` in the table, which `pool_schema.sql` creates."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(
        self, database: PsycopgDatabase, *, prefix: str, owner: str, lease_ms: int, create_table: bool
    ) -> None:
        super().__init__(prefix=prefix, owner=owner, lease_ms=lease_ms, now_ms=POSTGRES_NOW_MS)
        self._database = database
        self._table = TableFile(LEASE_TABLE, "pool_schema.sql", create=create_table)
        self._table_exists = False

    def _was_beaten(self, error: Exception) -> bool:
        return isinstance(error, psycopg.errors.IntegrityError) or is_conflict(error)

    async def _in_transaction(self, steps: Steps[ResultT]) -> ResultT:
        if not self._table_exists:
            await self._database.ensure_table(self._table)
            self._table_exists = True
        return await self._database.in_transaction(steps)
