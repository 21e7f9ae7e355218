"""Leases of transactional ids in a table, on any database that SQLAlchemy reaches and whose clock we can ask.

`pool_schema.sql`, and `pool_schema_mysql.sql` for MySQL and MariaDB, are the same table for people who create tables by
hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from dualwrite.errors import ConfigError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.database_conflicts import is_conflict
from dualwrite.recipes.core.state_row import MAX_TRANSACTIONAL_ID_LENGTH, missing_table
from dualwrite.recipes.sql.lease_statements import LEASE_TABLE, POSTGRES_NOW_MS, Steps, TableLeases
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sqlalchemy.adapter import Carry, here
from dualwrite.recipes.sqlalchemy.engines import locks_whole_database
from dualwrite.recipes.sqlalchemy.state_table import exact_text
from dualwrite.recipes.sqlalchemy.tables import AS_NAMED, home, in_schema, schema_for

ResultT = TypeVar("ResultT")

metadata = sa.MetaData()

kafka_transaction_lease = sa.Table(
    LEASE_TABLE,
    metadata,
    sa.Column("prefix", exact_text(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("owner", exact_text(64), nullable=True),
    sa.Column("expires_at_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    mysql_engine="InnoDB",  # whatever the server's default is: others have no transactions
    mariadb_engine="InnoDB",
)

_NOW_MS: Final = {
    "postgresql": POSTGRES_NOW_MS,
    # UNIX_TIMESTAMP(NOW()) means two instants in the hour that autumn repeats
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)",
    "mariadb": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}
"""Milliseconds since 1970."""


def create_lease_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create `kafka_transaction_lease` where it is missing; safe when several processes do it at once."""
    schema = schema_for(engine, schema)
    try:
        in_schema(kafka_transaction_lease, schema).metadata.create_all(engine.execution_options(**AS_NAMED))
    except (IntegrityError, ProgrammingError, OperationalError):
        # Two processes created it in the same instant: the loser sees the winner's table on a second look.
        if not sa.inspect(engine).has_table(LEASE_TABLE, schema=schema):
            raise


class _Transaction:
    """`LeaseTransaction` on a Connection."""

    def __init__(self, connection: sa.Connection, pinned: PinnedTables) -> None:
        self._connection = connection
        self._pinned = pinned

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return self._connection.execute(sa.text(self._pinned.sql(sql)), values).all()

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        return self._connection.execute(sa.text(self._pinned.sql(sql)), values).rowcount

    async def has_table(self, name: str) -> bool:
        return sa.inspect(self._connection).has_table(name, schema=self._pinned.schema)


class SqlAlchemyLeases(TableLeases):
    """`Leases` in the table, on an engine. Raises ConfigError for a database whose clock it does not know to ask."""

    errors: tuple[type[Exception], ...] = (SQLAlchemyError,)

    def __init__(
        self,
        engine: sa.Engine,
        *,
        prefix: str,
        owner: str,
        lease_ms: int,
        create_table: bool,
        schema: str | None = None,
        carry: Carry = here,
    ) -> None:
        if engine.dialect.name not in _NOW_MS:
            raise ConfigError(
                f"leases of transactional ids need a database whose clock can be asked ({', '.join(_NOW_MS)}), "
                f"not {engine.dialect.name}; use one DualWriter per transactional id there"
            )
        super().__init__(prefix=prefix, owner=owner, lease_ms=lease_ms, now_ms=_NOW_MS[engine.dialect.name])
        self._engine = engine
        self._create_table = create_table
        self._schema = schema_for(engine, schema)
        self._pinned: PinnedTables | None = None
        self._carry = carry

    def _was_beaten(self, error: Exception) -> bool:
        if isinstance(error, IntegrityError):
            return True
        # SQLite's only conflict is that its lock was not free in time
        return isinstance(error, DBAPIError) and not locks_whole_database(self._engine.dialect) and is_conflict(error)

    async def _in_transaction(self, steps: Steps[ResultT]) -> ResultT:
        return await self._carry(lambda: self._run(steps))

    def _run(self, steps: Steps[ResultT]) -> ResultT:
        if self._create_table:
            create_lease_table(self._engine, self._schema)
            self._create_table = False
        pinned = self._where()
        try:
            with self._engine.begin() as connection:
                return blocking.run(steps(_Transaction(connection, pinned)))
        except (OperationalError, ProgrammingError) as error:
            if sa.inspect(self._engine).has_table(LEASE_TABLE, schema=pinned.schema):
                raise
            raise missing_table(LEASE_TABLE, otherwise="create_lease_table(engine)") from error

    def _where(self) -> PinnedTables:
        if self._pinned is None:
            with self._engine.connect() as connection:
                self._pinned = home(connection, self._schema, LEASE_TABLE)
        return self._pinned
