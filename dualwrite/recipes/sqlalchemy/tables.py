"""The location of our tables on any database that SQLAlchemy supports, and the identity and lease tables.

`sql/pinned_tables.py` says why the location is queried only once. The state table and the outbox have modules of their
own. On PostgreSQL `schema.sql` and `pool_schema.sql` create the same tables by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from dualwrite.guarded import pass_on_signal
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.store import MAX_TRANSACTIONAL_ID_LENGTH, missing_table
from dualwrite.recipes.sql.identity_table import IDENTITY_TABLE
from dualwrite.recipes.sql.lease_statements import LEASE_TABLE
from dualwrite.recipes.sql.pinned_tables import (
    OnTables,
    Pin,
    PinnedTables,
    Query,
    checked_schema,
    find_schema,
    find_state_table,
)
from dualwrite.recipes.sqlalchemy.drivers import Carry, here
from dualwrite.recipes.sqlalchemy.engines import is_mysql
from dualwrite.recipes.sqlalchemy.own_statements import AS_NAMED, OWN, cached_text, own_text

ResultT = TypeVar("ResultT")


def exact_text(length: int) -> sa.types.TypeEngine[str]:
    """Return a case-sensitive type: under MySQL's usual collations `Orders` and `orders` would share a row."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


def own_table(name: str, *columns: sa.Column[Any] | sa.UniqueConstraint) -> sa.Table:
    """Return a table of ours, on MySQL in InnoDB regardless of its default: most other engines have no transactions."""
    return sa.Table(name, sa.MetaData(), *columns, mysql_engine="InnoDB", mariadb_engine="InnoDB")


_LONGEST_NAME: Final = 255
"""Of a group or a topic, in characters. Kafka limits topics to 249."""

kafka_consumed_offset = sa.Table(
    "kafka_consumed_offset",
    sa.MetaData(),
    sa.Column("group_id", exact_text(_LONGEST_NAME), primary_key=True),
    sa.Column("topic", exact_text(_LONGEST_NAME), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("next_offset", sa.BigInteger, nullable=False),
    sa.Column("topic_id", sa.String(36), nullable=True),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)


@cache
def in_schema(table: sa.Table, schema: str | None) -> sa.Table:
    return table if schema is None else table.to_metadata(sa.MetaData(), schema=schema)


def schema_for(engine: sa.Engine, schema: Any) -> str | None:
    """Return the setting, or by default the engine's schema_translate_map entry for tables without a schema."""
    if schema is None:
        translated = engine.get_execution_options().get("schema_translate_map") or {}
        schema = translated.get(None)
    return checked_schema(schema)


def pinned_tables(connection: sa.Connection, schema: str | None) -> PinnedTables | None:
    """Find the state table; return None if PostgreSQL has none. Raises StateTableError."""
    dialect = connection.dialect
    if dialect.name == "postgresql":
        return _queried(connection, find_state_table(schema))
    return _quoted(connection, schema or _default_schema(connection))


def home(connection: sa.Connection, schema: str | None, table: str) -> PinnedTables:
    """Return the location of another of our tables, existing or to be created."""
    if connection.dialect.name != "postgresql":
        return _quoted(connection, schema or _default_schema(connection))
    return _queried(connection, find_schema(schema, table))


def _queried(connection: sa.Connection, steps: Query[ResultT]) -> ResultT:
    return blocking.run(OnConnection(connection, Pin()).query(steps))


def _default_schema(connection: sa.Connection) -> str | None:
    dialect = connection.dialect
    if dialect.name in ("mysql", "mariadb"):
        found: str | None = connection.exec_driver_sql("SELECT DATABASE()", execution_options={OWN: True}).scalar()
        return found
    return "main" if dialect.name == "sqlite" else dialect.default_schema_name


def _quoted(connection: sa.Connection, schema: str | None) -> PinnedTables:
    preparer = connection.dialect.identifier_preparer
    return PinnedTables(schema, None if schema is None else preparer.quote_schema(schema))


# ---- the identity of the database: one row, made once --------------------------------------------------------------

# The row is made at first use, not by a script, which would give every database the same suffix.

kafka_transaction_database = own_table(
    IDENTITY_TABLE,
    sa.Column("only_row", sa.Integer, sa.CheckConstraint("only_row = 1"), primary_key=True, autoincrement=False),
    sa.Column("suffix", sa.String(16), nullable=False),
    sa.Column("made_in_server", sa.String(64), nullable=True),
    sa.Column("made_in_database", sa.String(64), nullable=True),
    sa.Column("made_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)

# ---- leases of transactional ids -----------------------------------------------------------------------------------

kafka_transaction_lease = own_table(
    LEASE_TABLE,
    sa.Column("prefix", exact_text(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("owner", exact_text(64), nullable=True),
    sa.Column("expires_at_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),
)


def create_lease_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create `kafka_transaction_lease` if it is missing. Safe in several processes at once."""
    create_missing(engine, kafka_transaction_lease, schema_for(engine, schema))


def create_missing(engine: sa.Engine, table: sa.Table, schema: str | None) -> None:
    """Create a table in a schema if it is missing. Safe in several processes at once."""
    try:
        in_schema(table, schema).metadata.create_all(engine.execution_options(**AS_NAMED))
    except (IntegrityError, ProgrammingError, OperationalError) as error:
        pass_on_signal(error)
        # Another process created it at the same moment
        if not sa.inspect(engine).has_table(table.name, schema=schema):
            raise


def need_table(engine: sa.Engine, pinned: PinnedTables, table: sa.Table, *, create: bool) -> None:
    """Create a table where it is missing. Raises StateRowError unless it may be created here."""
    if create:
        create_missing(engine, table, pinned.schema)
    if not sa.inspect(engine).has_table(table.name, schema=pinned.schema):
        raise missing_table(table.name, otherwise=f"create_{table.name.rpartition('_')[2]}_table(engine)")


class OnConnection(OnTables):
    """Executes statements in the transaction of a Connection."""

    def __init__(self, connection: sa.Connection, pin: Pin, carry: Carry = here) -> None:
        self.connection = connection
        self.dialect = connection.dialect.name
        self.pin = pin
        self._carry = carry

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return await self._carry(lambda: self.connection.execute(cached_text(self.pin.sql(sql)), values).all())

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        return await self._carry(lambda: self.connection.execute(cached_text(self.pin.sql(sql)), values).rowcount)

    async def inserted(self, sql: str, values: Mapping[str, Any]) -> int:
        """Execute an INSERT, and return the number that the row got, which is returned or known to the driver."""
        return await self._carry(partial(self._inserted, sql, values))

    def _inserted(self, sql: str, values: Mapping[str, Any]) -> int:
        result = self.connection.execute(cached_text(self.pin.sql(sql)), values)
        number: int = result.scalar_one() if result.returns_rows else result.lastrowid
        return number

    async def has_table(self, name: str) -> bool:
        return await self._carry(partial(self._has_table, name))

    def _has_table(self, name: str) -> bool:
        """Query for a table without a statement that can fail, which would doom the caller's block."""
        schema = self.pin.located.schema
        if not is_mysql(self.connection.dialect):
            return sa.inspect(self.connection).has_table(name, schema=schema)
        return self.connection.scalar(_MYSQL_HAS_TABLE, {"schema": schema, "name": name}) is not None


_MYSQL_HAS_TABLE: Final = own_text(
    "SELECT 1 FROM information_schema.tables WHERE table_schema = :schema AND table_name = :name"
)
