"""The table `kafka_transaction_outbox` on PostgreSQL with SQLAlchemy, as described in `sql/outbox_statements.py`.

The file `outbox_schema.sql` creates the same table by hand.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from dualwrite.errors import ConfigError
from dualwrite.recipes.core.store import MAX_TRANSACTIONAL_ID_LENGTH
from dualwrite.recipes.sql.outbox_statements import (
    OUTBOX_TABLE,
)
from dualwrite.recipes.sqlalchemy.tables import create_missing, pinned_tables, schema_for

kafka_transaction_outbox = sa.Table(
    OUTBOX_TABLE,
    sa.MetaData(),
    sa.Column("transactional_id", sa.String(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column("seq", sa.BigInteger, sa.Identity(always=False), primary_key=True),
    sa.Column("stored_at_ms", sa.BigInteger, nullable=False),
    sa.Column("records", sa.LargeBinary, nullable=True),
    sa.Column("published", postgresql.ARRAY(sa.BigInteger), nullable=True),
    sa.Column("forgotten", sa.BigInteger, nullable=True),
    sa.Column("prepared_transaction_state", sa.String(64), nullable=True),
)


def assert_has_outboxes(dialect: sa.Dialect) -> None:
    """Raise ConfigError for a database that cannot have the table."""
    if dialect.name != "postgresql":
        raise ConfigError(
            f"{OUTBOX_TABLE} is made for PostgreSQL, not for {dialect.name}; nothing was created: leave outbox out of "
            "the settings of pools there"
        )


def create_outbox_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create `kafka_transaction_outbox` if it is missing, beside the state table. Safe in several processes at once.

    Raises ConfigError unless this is PostgreSQL.
    """
    assert_has_outboxes(engine.dialect)
    schema = schema_for(engine, schema)
    with engine.connect() as connection:
        pinned = pinned_tables(connection, schema)
    create_missing(engine, kafka_transaction_outbox, schema if pinned is None else pinned.schema)
