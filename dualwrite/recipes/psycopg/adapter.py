"""PostgreSQL with psycopg as the database of dual writes."""

from __future__ import annotations

import psycopg

from dualwrite.recipes.postgres.adapter import PostgresDatabase
from dualwrite.recipes.psycopg.driver import AnyConnection, isolation_name
from dualwrite.recipes.psycopg.transaction import PsycopgTransaction


class PsycopgDatabase(PostgresDatabase[PsycopgTransaction]):
    """`Database` on psycopg's connections."""

    errors = (psycopg.Error,)
    transaction_class = PsycopgTransaction

    async def _isolation_of(self, connection: AnyConnection) -> str | None:
        level = connection.isolation_level
        return None if level is None else isolation_name(level)
