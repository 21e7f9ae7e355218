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

from dualwrite.recipes.consume.consumed_offsets import kafka_consumed_offset
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

CONSUMED_OFFSETS_METADATA: Final = kafka_consumed_offset.metadata
"""The same for the table that `OffsetsInDatabase` uses."""

OUTBOX_METADATA: Final = kafka_transaction_outbox.metadata
"""The same for the table of outboxes."""

_TABLES: Final = (
    kafka_transaction_state,
    kafka_transaction_database,
    kafka_transaction_lease,
)


class _Operation(MigrateOperation):
    """An operation on tables of dual writes; `which` are the settings of `tables_of`."""

    undone_by: type[_Operation]

    def __init__(self, schema: str | None = None, **which: bool) -> None:
        self.schema = schema
        self.which = which
        self.tables = self.tables_of(**which)

    @staticmethod
    def tables_of(*, consumed_offsets: bool = False) -> tuple[sa.Table, ...]:
        """Return the tables, in the order in which they are created."""
        return (*_TABLES, kafka_consumed_offset) if consumed_offsets else _TABLES

    @classmethod
    def carry_out(cls, operations: Operations, *, schema: str | None = None, **which: bool) -> None:
        """Carry out the operation; `op` has this method under the operation's name."""
        operations.invoke(cls(schema, **which))

    def reverse(self) -> MigrateOperation:
        return self.undone_by(self.schema, **self.which)


class _OnOutbox(_Operation):
    @staticmethod
    def tables_of() -> tuple[sa.Table, ...]:  # type: ignore[override]  # has no settings
        return (kafka_transaction_outbox,)


@Operations.register_operation("create_dualwrite_tables", "carry_out")
class CreateDualwriteTables(_Operation):
    """`op.create_dualwrite_tables(schema=None)`: create them, online or as SQL (`alembic upgrade --sql`).

    With `consumed_offsets=True` also the table that `OffsetsInDatabase` uses.
    """


@Operations.register_operation("drop_dualwrite_tables", "carry_out")
class DropDualwriteTables(_Operation):
    """`op.drop_dualwrite_tables(schema=None)`. Recover first: afterwards transactions in doubt cannot be decided."""

    undone_by = CreateDualwriteTables


@Operations.register_operation("create_dualwrite_outbox_table", "carry_out")
class CreateDualwriteOutboxTable(_OnOutbox):
    """`op.create_dualwrite_outbox_table(schema=None)`: create `kafka_transaction_outbox`.

    Raises ConfigError for a database that cannot have it.
    """


@Operations.register_operation("drop_dualwrite_outbox_table", "carry_out")
class DropDualwriteOutboxTable(_OnOutbox):
    """`op.drop_dualwrite_outbox_table(schema=None)`. Recover first: blocks stored in it would never reach Kafka."""

    undone_by = CreateDualwriteOutboxTable


CreateDualwriteTables.undone_by = DropDualwriteTables
CreateDualwriteOutboxTable.undone_by = DropDualwriteOutboxTable


@Operations.implementation_for(CreateDualwriteTables)
@Operations.implementation_for(CreateDualwriteOutboxTable)
def _create(operations: Operations, operation: _Operation) -> None:
    if kafka_transaction_outbox in operation.tables:
        assert_has_outboxes(operations.get_context().dialect)
    for table in operation.tables:
        operations.impl.create_table(table.to_metadata(sa.MetaData(schema=operation.schema)))


@Operations.implementation_for(DropDualwriteTables)
@Operations.implementation_for(DropDualwriteOutboxTable)
def _drop(operations: Operations, operation: _Operation) -> None:
    for table in reversed(operation.tables):
        operations.drop_table(table.name, schema=operation.schema)
