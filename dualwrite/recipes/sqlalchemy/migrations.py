"""The tables of dual writes as operations of Alembic.

    import dualwrite.recipes.sqlalchemy.migrations  # noqa: F401 - registers the operations

    def upgrade() -> None:
        op.create_dualwrite_tables()

    def downgrade() -> None:
        op.drop_dualwrite_tables()

For `Outbox()` and `Direct(when_kafka_is_away="store")` there is one more table:

    def upgrade() -> None:
        op.create_dualwrite_outbox_table()

    def downgrade() -> None:
        op.drop_dualwrite_outbox_table()

`alembic revision --autogenerate` drops unknown tables, so `target_metadata` in env.py must list both yours and ours:
`[Base.metadata, *METADATA]`, with `OUTBOX_METADATA` and `CONSUMED_OFFSETS_METADATA` as needed.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic.operations import MigrateOperation, Operations

from dualwrite.recipes.consume import consumed_offsets
from dualwrite.recipes.sqlalchemy.outbox_table import assert_has_outboxes, kafka_transaction_outbox
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import kafka_transaction_database, kafka_transaction_lease

__all__ = [
    "CONSUMED_OFFSETS_METADATA",
    "METADATA",
    "OUTBOX_METADATA",
    "CreateDualwriteOutboxTable",
    "CreateDualwriteTables",
    "DropDualwriteOutboxTable",
    "DropDualwriteTables",
]

METADATA: Final = (
    kafka_transaction_state.metadata,
    kafka_transaction_database.metadata,
    kafka_transaction_lease.metadata,
)
"""The tables for autogenerate; a sequence, so that `target_metadata` takes `*METADATA`."""

CONSUMED_OFFSETS_METADATA: Final = consumed_offsets.metadata
"""The same for the table that `OffsetsInDatabase` uses."""

OUTBOX_METADATA: Final = kafka_transaction_outbox.metadata
"""The same for the table of outboxes."""

_TABLES: Final = (
    kafka_transaction_state,
    kafka_transaction_database,
    kafka_transaction_lease,
)


class _OnOutbox(MigrateOperation):
    """An operation on the table of outboxes."""

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema

    @classmethod
    def carry_out(cls, operations: Operations, *, schema: str | None = None) -> None:
        """Carry out the operation; `op` has this method under the operation's name."""
        operations.invoke(cls(schema))

    def reverse(self) -> MigrateOperation:
        """Return the operation that undoes this one."""
        undo = DropDualwriteOutboxTable if isinstance(self, CreateDualwriteOutboxTable) else CreateDualwriteOutboxTable
        return undo(self.schema)


class _OnTables(MigrateOperation):
    """An operation on the tables of a writer."""

    def __init__(self, schema: str | None = None, *, consumed_offsets: bool = False) -> None:
        self.schema = schema
        self.consumed_offsets = consumed_offsets

    @classmethod
    def carry_out(cls, operations: Operations, *, schema: str | None = None, consumed_offsets: bool = False) -> None:
        """Carry out the operation; `op` has this method under the operation's name."""
        operations.invoke(cls(schema, consumed_offsets=consumed_offsets))

    def reverse(self) -> MigrateOperation:
        """Return the operation that undoes this one."""
        undo = DropDualwriteTables if isinstance(self, CreateDualwriteTables) else CreateDualwriteTables
        return undo(self.schema, consumed_offsets=self.consumed_offsets)


@Operations.register_operation("create_dualwrite_tables", "carry_out")
class CreateDualwriteTables(_OnTables):
    """`op.create_dualwrite_tables(schema=None)`: create them, online or as SQL (`alembic upgrade --sql`).

    With `consumed_offsets=True` also the table that `OffsetsInDatabase` uses.
    """


@Operations.register_operation("drop_dualwrite_tables", "carry_out")
class DropDualwriteTables(_OnTables):
    """`op.drop_dualwrite_tables(schema=None)`. Recover first: afterwards transactions in doubt cannot be decided."""


@Operations.register_operation("create_dualwrite_outbox_table", "carry_out")
class CreateDualwriteOutboxTable(_OnOutbox):
    """`op.create_dualwrite_outbox_table(schema=None)`: create `kafka_transaction_outbox`.

    Raises ConfigError for a database that cannot have it.
    """


@Operations.register_operation("drop_dualwrite_outbox_table", "carry_out")
class DropDualwriteOutboxTable(_OnOutbox):
    """`op.drop_dualwrite_outbox_table(schema=None)`. Recover first: blocks stored in it would never reach Kafka."""


@Operations.implementation_for(CreateDualwriteOutboxTable)
def _create_outbox(operations: Operations, operation: CreateDualwriteOutboxTable) -> None:
    assert_has_outboxes(operations.get_context().dialect)
    operations.impl.create_table(kafka_transaction_outbox.to_metadata(sa.MetaData(schema=operation.schema)))


@Operations.implementation_for(DropDualwriteOutboxTable)
def _drop_outbox(operations: Operations, operation: DropDualwriteOutboxTable) -> None:
    operations.drop_table(kafka_transaction_outbox.name, schema=operation.schema)


@Operations.implementation_for(CreateDualwriteTables)
def _create(operations: Operations, operation: CreateDualwriteTables) -> None:
    for table in _tables(operation):
        operations.impl.create_table(table.to_metadata(sa.MetaData(schema=operation.schema)))


@Operations.implementation_for(DropDualwriteTables)
def _drop(operations: Operations, operation: DropDualwriteTables) -> None:
    for table in reversed(_tables(operation)):
        operations.drop_table(table.name, schema=operation.schema)


def _tables(operation: CreateDualwriteTables | DropDualwriteTables) -> tuple[sa.Table, ...]:
    return (*_TABLES, consumed_offsets.kafka_consumed_offset) if operation.consumed_offsets else _TABLES
