"""The table `kafka_transaction_outbox` on PostgreSQL with SQLAlchemy, as described in `sql/outbox_statements.py`.

The file `outbox_schema.sql` creates the same table by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from dualwrite.errors import ConfigError
from dualwrite.recipes.core.store import MAX_TRANSACTIONAL_ID_LENGTH, Added, Backlog, missing_table
from dualwrite.recipes.sql.outbox_statements import (
    HAS_WAITING,
    IS_IN_PROGRESS,
    MAY_VACUUM,
    OUTBOX_TABLE,
    SELECT_BACKLOG,
    VACUUM,
)
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sql.postgres_steps import Pin
from dualwrite.recipes.sqlalchemy.own_statements import cached_text
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


class SqlAlchemyOutbox:
    """The table of one database, in the schema of its state table."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def prepare(self, pinned: PinnedTables, pin: Pin, *, create_table: bool) -> None:
        """Create the table if it is missing. Raises StateRowError if that is not allowed."""
        if pin.has_outbox_table:
            return
        if create_table:
            create_missing(self._engine, kafka_transaction_outbox, pinned.schema)
        if not sa.inspect(self._engine).has_table(OUTBOX_TABLE, schema=pinned.schema):
            raise missing_table(OUTBOX_TABLE, otherwise="create_outbox_table(engine)", option=" --outbox")
        pin.has_outbox_table = True

    def is_in_progress(self, added: Added) -> bool:
        """Return whether the transaction that added a block is still running."""
        return bool(self._row(IS_IN_PROGRESS, {"transaction": added.transaction})[0])

    def has_waiting(self, pinned: PinnedTables, transactional_id: str) -> bool:
        """Return whether stored blocks wait, without a lock."""
        return bool(self._row(pinned.sql(HAS_WAITING), {"id": transactional_id})[0])

    def backlog(self, pinned: PinnedTables, transactional_id: str) -> Backlog:
        """Return the number, size and age of the stored blocks, without a lock."""
        return Backlog(*self._row(pinned.sql(SELECT_BACKLOG), {"id": transactional_id}))

    def vacuum(self, pinned: PinnedTables) -> None:
        """Vacuum the table, if the role may."""
        if self._row(MAY_VACUUM, {"name": pinned.sql(OUTBOX_TABLE)})[0]:
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql(pinned.sql(VACUUM))

    def _row(self, sql: str, values: Mapping[str, Any]) -> Sequence[Any]:
        with self._engine.connect() as connection:
            return connection.execute(cached_text(sql), values).one()
