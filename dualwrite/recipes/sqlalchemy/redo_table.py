"""The table `kafka_transaction_redo` on SQLAlchemy's databases, as described in `sql/redo_statements.py`.

The files `redo_schema.sql` and `redo_schema_mysql.sql` create the same table by hand.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import IntegrityError

from dualwrite.errors import ConfigError
from dualwrite.recipes.core.store import MAX_TRANSACTIONAL_ID_LENGTH, missing_table
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sql.redo_statements import (
    DELETE_BY_KEY,
    INSERT_HEAD,
    REDO_TABLE,
    SELECT_HEAD,
    RedoTable,
)
from dualwrite.recipes.sqlalchemy.drivers import Carry
from dualwrite.recipes.sqlalchemy.mysql_row_lock import lock_wait_limit
from dualwrite.recipes.sqlalchemy.own_statements import own_text
from dualwrite.recipes.sqlalchemy.tables import TextStatements, create_missing, exact_text, pinned_tables, schema_for

_INNODB: Final = ("mysql", "mariadb")
_DIALECTS: Final = ("postgresql", *_INNODB, "sqlite")

kafka_transaction_redo = sa.Table(
    REDO_TABLE,
    sa.MetaData(),
    sa.Column("transactional_id", exact_text(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("stored_at_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("newest_seq", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("stored_bytes", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("records", sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"), nullable=True),
    mysql_engine="InnoDB",  # regardless of the server's default: most other engines have no transactions
    mariadb_engine="InnoDB",
)


def create_redo_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create `kafka_transaction_redo` if it is missing, beside the state table. Safe in several processes at once."""
    schema = schema_for(engine, schema)
    with engine.connect() as connection:
        pinned = pinned_tables(connection, schema)
    create_missing(engine, kafka_transaction_redo, schema if pinned is None else pinned.schema)


class SqlAlchemyRedo:
    """The table of one database, in the schema of its state table; caches that it exists."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._exists = False

    def prepare(self, pinned: PinnedTables, transactional_id: str, *, create_table: bool) -> None:
        """Create the row of an id with seq 0, and the table if that is allowed.

        Raises StateRowError if the table is missing, ConfigError for a database whose statements are not known.
        """
        if self._engine.dialect.name not in _DIALECTS:
            raise ConfigError(
                f"storing records needs one of the databases {', '.join(_DIALECTS)}, not {self._engine.dialect.name}: "
                "leave delivery at Direct()"
            )
        if create_table:
            create_missing(self._engine, kafka_transaction_redo, pinned.schema)
        with self._engine.connect() as connection:
            if not self.exists(connection, pinned):
                raise missing_table(REDO_TABLE, otherwise="create_redo_table(engine)", option=" --redo")
        self._ensure_head(pinned, transactional_id)

    def _ensure_head(self, pinned: PinnedTables, transactional_id: str) -> None:
        values = {"id": transactional_id}
        try:
            with self._engine.begin() as connection:
                if connection.execute(own_text(pinned.sql(SELECT_HEAD)), values).first() is None:
                    with _limited_wait(connection):
                        connection.execute(own_text(pinned.sql(INSERT_HEAD)), values)
        except IntegrityError:
            pass  # another process created it at the same moment

    def exists(self, connection: sa.Connection, pinned: PinnedTables) -> bool:
        """Return whether the table exists; a positive answer is cached."""
        if not self._exists:
            self._exists = _has_redo_table(connection, pinned)
        return self._exists

    def blocks_on(self, connection: sa.Connection, pinned: PinnedTables, carry: Carry) -> RedoTable:
        """Return the stored blocks as seen in the transaction of `connection`, not on PostgreSQL."""
        statements = _Statements(self, connection, pinned, carry)
        if connection.dialect.name in _INNODB:
            return RedoTable(statements, delete=DELETE_BY_KEY)
        return RedoTable(statements, lock_clause="")  # SQLite's one write lock is held with the state row


def _has_redo_table(connection: sa.Connection, pinned: PinnedTables) -> bool:
    """Query for the table without a statement that can fail, which would doom the caller's block."""
    if connection.dialect.name not in _INNODB:
        return sa.inspect(connection).has_table(REDO_TABLE, schema=pinned.schema)
    values = {"schema": pinned.schema, "name": REDO_TABLE}
    return connection.scalar(_MYSQL_HAS_TABLE, values) is not None


_MYSQL_HAS_TABLE: Final = own_text(
    "SELECT 1 FROM information_schema.tables WHERE table_schema = :schema AND table_name = :name"
)


def _limited_wait(connection: sa.Connection) -> AbstractContextManager[None]:
    return lock_wait_limit(connection) if connection.dialect.name in _INNODB else nullcontext()


class _Statements(TextStatements):
    """`Statements` on a Connection."""

    def __init__(self, redo: SqlAlchemyRedo, connection: sa.Connection, pinned: PinnedTables, carry: Carry) -> None:
        super().__init__(connection, pinned, carry)
        self._redo = redo

    async def has_redo_table(self) -> bool:
        return await self._carry(lambda: self._redo.exists(self._connection, self._pinned))
