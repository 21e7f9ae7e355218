"""The table `kafka_transaction_outbox` with SQLAlchemy, as `sql/outbox_statements.py` describes it.

On PostgreSQL `outbox_schema.sql` creates the same table by hand.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.ext.compiler import compiles

from dualwrite.errors import ConfigError
from dualwrite.recipes.core.store import MAX_TRANSACTIONAL_ID_LENGTH
from dualwrite.recipes.sql.outbox_elsewhere import OUTBOX_SQL
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE
from dualwrite.recipes.sqlalchemy.engines import is_mysql
from dualwrite.recipes.sqlalchemy.tables import create_missing, exact_text, own_table, pinned_tables, schema_for


class _Numbered(mysql.BIGINT):
    """A number that MySQL gives to a new row. SQLAlchemy's `autoincrement` would refuse the same key for SQLite."""


@compiles(_Numbered, "mysql", "mariadb")
def _numbered(type_: _Numbered, compiler: Any, **_: Any) -> str:
    return "BIGINT AUTO_INCREMENT"


def _numbers_by_key(*_: Any, dialect: sa.Dialect, **__: Any) -> bool:
    """Return whether a column can give numbers only if a key begins with it."""
    return is_mysql(dialect)


kafka_transaction_outbox = own_table(
    OUTBOX_TABLE,
    sa.Column("transactional_id", exact_text(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column(
        "seq",
        sa.BigInteger().with_variant(_Numbered(), "mysql", "mariadb"),
        sa.Identity(always=False),
        primary_key=True,
    ),
    sa.Column("stored_at_ms", sa.BigInteger, nullable=False),
    sa.Column("records", sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"), nullable=True),
    sa.Column(
        "published",
        sa.Text()
        .with_variant(postgresql.ARRAY(sa.BigInteger), "postgresql")
        .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"),
        nullable=True,
    ),
    sa.Column("forgotten", sa.BigInteger, nullable=True),
    sa.Column("prepared_transaction_state", sa.String(64), nullable=True),
    sa.UniqueConstraint("seq", "transactional_id").ddl_if(callable_=_numbers_by_key),
)


def has_outboxes(dialect: sa.Dialect) -> bool:
    return dialect.name in OUTBOX_SQL


def select_outboxes(dialect: sa.Dialect) -> str:
    """Return the statement for the blocks that wait under each id: their number, and since when."""
    return (
        f"SELECT transactional_id, count(*), min(stored_at_ms) FROM {OUTBOX_TABLE}"
        f" WHERE {OUTBOX_SQL[dialect.name].is_waiting} GROUP BY transactional_id"
    )


def assert_has_outboxes(dialect: sa.Dialect) -> None:
    """Raise ConfigError for a database that cannot have the table."""
    if not has_outboxes(dialect):
        raise ConfigError(
            f"{OUTBOX_TABLE} is made for {', '.join(OUTBOX_SQL)}, not for {dialect.name}; nothing was created: leave "
            "delivery at Direct() in the settings of pools there"
        )


def create_outbox_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create `kafka_transaction_outbox` if it is missing, beside the state table. Safe in several processes at once.

    Raises ConfigError for a database that cannot have it.
    """
    assert_has_outboxes(engine.dialect)
    schema = schema_for(engine, schema)
    with engine.connect() as connection:
        pinned = pinned_tables(connection, schema)
    create_missing(engine, kafka_transaction_outbox, schema if pinned is None else pinned.schema)
