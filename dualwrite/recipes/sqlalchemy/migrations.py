"""The tables of dual writes in migrations of Alembic.

    from dualwrite.recipes.sqlalchemy.migrations import create_dualwrite_tables, drop_dualwrite_tables

    def upgrade() -> None:
        create_dualwrite_tables()

    def downgrade() -> None:
        drop_dualwrite_tables()

They work online and as SQL (`alembic upgrade --sql`). `alembic revision --autogenerate` drops unknown tables, so
`target_metadata` in env.py must list both yours and ours: `[Base.metadata, *METADATA]`, with `OUTBOX_METADATA` and
`CONSUMED_OFFSETS_METADATA` as needed.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

from dualwrite.recipes.sqlalchemy.outbox_table import assert_has_outboxes, kafka_transaction_outbox
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import (
    kafka_consumed_offset,
    kafka_transaction_database,
    kafka_transaction_lease,
)

__all__ = [
    "CONSUMED_OFFSETS_METADATA",
    "METADATA",
    "OUTBOX_METADATA",
    "create_dualwrite_outbox_table",
    "create_dualwrite_tables",
    "drop_dualwrite_outbox_table",
    "drop_dualwrite_tables",
]

_TABLES: Final = (kafka_transaction_state, kafka_transaction_database, kafka_transaction_lease)

METADATA: Final = tuple(table.metadata for table in _TABLES)
"""The tables for autogenerate; a sequence, so that `target_metadata` takes `*METADATA`."""

CONSUMED_OFFSETS_METADATA: Final = kafka_consumed_offset.metadata
"""The same for the table that `OffsetsInDatabase` uses."""

OUTBOX_METADATA: Final = kafka_transaction_outbox.metadata
"""The same for the table of outboxes."""


def create_dualwrite_tables(schema: str | None = None, *, consumed_offsets: bool = False) -> None:
    """Create the tables of every writer; with `consumed_offsets` also the one that `OffsetsInDatabase` uses."""
    for table in _tables(consumed_offsets):
        _create(table, schema)


def drop_dualwrite_tables(schema: str | None = None, *, consumed_offsets: bool = False) -> None:
    """Drop the tables of every writer. Recover first: afterwards transactions in doubt cannot be decided."""
    for table in _tables(consumed_offsets):
        op.drop_table(table.name, schema=schema)


def create_dualwrite_outbox_table(schema: str | None = None) -> None:
    """Create the outbox's table. Raises ConfigError for a database that cannot have it."""
    assert_has_outboxes(op.get_context().dialect)
    _create(kafka_transaction_outbox, schema)


def drop_dualwrite_outbox_table(schema: str | None = None) -> None:
    """Drop the table of outboxes. Recover first: blocks stored in it would never reach Kafka."""
    op.drop_table(kafka_transaction_outbox.name, schema=schema)


def _tables(consumed_offsets: bool) -> tuple[sa.Table, ...]:
    return (*_TABLES, kafka_consumed_offset) if consumed_offsets else _TABLES


def _create(table: sa.Table, schema: str | None) -> None:
    op.get_context().impl.create_table(table.to_metadata(sa.MetaData(schema=schema)))
