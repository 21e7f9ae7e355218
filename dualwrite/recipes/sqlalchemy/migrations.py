"""The tables of dual writes as operations of Alembic.

    import dualwrite.recipes.sqlalchemy.migrations  # noqa: F401 - registers the operations

    def upgrade() -> None:
        op.create_dualwrite_tables()

    def downgrade() -> None:
        op.drop_dualwrite_tables()

Where an earlier revision created the tables before they had the column `manifest`, a later one adds it:

    def upgrade() -> None:
        op.add_dualwrite_manifest()

    def downgrade() -> None:
        op.drop_dualwrite_manifest()

For `Direct(when_kafka_is_away="store")` there is one more table:

    def upgrade() -> None:
        op.create_dualwrite_redo_table()

    def downgrade() -> None:
        op.drop_dualwrite_redo_table()

For `Outbox()`, on PostgreSQL, there is another one:

    def upgrade() -> None:
        op.create_dualwrite_outbox_table()

    def downgrade() -> None:
        op.drop_dualwrite_outbox_table()

`alembic revision --autogenerate` drops unknown tables, so `target_metadata` in env.py must list both yours and ours:
`[Base.metadata, *METADATA]`, with `REDO_METADATA`, `OUTBOX_METADATA` and `CONSUMED_OFFSETS_METADATA` as needed.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic.operations import MigrateOperation, Operations

from dualwrite.recipes.consume import consumed_offsets
from dualwrite.recipes.sqlalchemy.manifest_column import lacks_manifest
from dualwrite.recipes.sqlalchemy.outbox_table import assert_has_outboxes, kafka_transaction_outbox
from dualwrite.recipes.sqlalchemy.redo_table import kafka_transaction_redo
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import in_schema, kafka_transaction_database, kafka_transaction_lease

__all__ = [
    "CONSUMED_OFFSETS_METADATA",
    "METADATA",
    "OUTBOX_METADATA",
    "REDO_METADATA",
    "AddDualwriteManifest",
    "CreateDualwriteOutboxTable",
    "CreateDualwriteRedoTable",
    "CreateDualwriteTables",
    "DropDualwriteManifest",
    "DropDualwriteOutboxTable",
    "DropDualwriteRedoTable",
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

REDO_METADATA: Final = kafka_transaction_redo.metadata
"""The same for the table of stored records."""

OUTBOX_METADATA: Final = kafka_transaction_outbox.metadata
"""The same for the table of outboxes."""

_TABLES: Final = (
    kafka_transaction_state,
    kafka_transaction_database,
    kafka_transaction_lease,
)


@Operations.register_operation("create_dualwrite_tables")
class CreateDualwriteTables(MigrateOperation):
    """`op.create_dualwrite_tables(schema=None)`: create them, online or as SQL (`alembic upgrade --sql`).

    With `consumed_offsets=True` also the table that `OffsetsInDatabase` uses.
    """

    def __init__(self, schema: str | None = None, *, consumed_offsets: bool = False) -> None:
        self.schema = schema
        self.consumed_offsets = consumed_offsets

    @classmethod
    def create_dualwrite_tables(
        cls, operations: Operations, *, schema: str | None = None, consumed_offsets: bool = False
    ) -> None:
        """Carry out `op.create_dualwrite_tables`."""
        operations.invoke(cls(schema, consumed_offsets=consumed_offsets))

    def reverse(self) -> DropDualwriteTables:
        """Return the operation that undoes this one."""
        return DropDualwriteTables(self.schema, consumed_offsets=self.consumed_offsets)


@Operations.register_operation("drop_dualwrite_tables")
class DropDualwriteTables(MigrateOperation):
    """`op.drop_dualwrite_tables(schema=None)`. Recover first: afterwards transactions in doubt cannot be decided."""

    def __init__(self, schema: str | None = None, *, consumed_offsets: bool = False) -> None:
        self.schema = schema
        self.consumed_offsets = consumed_offsets

    @classmethod
    def drop_dualwrite_tables(
        cls, operations: Operations, *, schema: str | None = None, consumed_offsets: bool = False
    ) -> None:
        """Carry out `op.drop_dualwrite_tables`."""
        operations.invoke(cls(schema, consumed_offsets=consumed_offsets))

    def reverse(self) -> CreateDualwriteTables:
        """Return the operation that undoes this one."""
        return CreateDualwriteTables(self.schema, consumed_offsets=self.consumed_offsets)


@Operations.register_operation("add_dualwrite_manifest")
class AddDualwriteManifest(MigrateOperation):
    """`op.add_dualwrite_manifest(schema=None)`: add the column `manifest` to `kafka_transaction_state`.

    Online it does nothing if the column exists, because a writer that may create tables adds it too.
    """

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema

    @classmethod
    def add_dualwrite_manifest(cls, operations: Operations, *, schema: str | None = None) -> None:
        """Carry out `op.add_dualwrite_manifest`."""
        operations.invoke(cls(schema))

    def reverse(self) -> DropDualwriteManifest:
        """Return the operation that undoes this one."""
        return DropDualwriteManifest(self.schema)


@Operations.register_operation("drop_dualwrite_manifest")
class DropDualwriteManifest(MigrateOperation):
    """`op.drop_dualwrite_manifest(schema=None)`, for a return to a version without the column."""

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema

    @classmethod
    def drop_dualwrite_manifest(cls, operations: Operations, *, schema: str | None = None) -> None:
        """Carry out `op.drop_dualwrite_manifest`."""
        operations.invoke(cls(schema))

    def reverse(self) -> AddDualwriteManifest:
        """Return the operation that undoes this one."""
        return AddDualwriteManifest(self.schema)


@Operations.register_operation("create_dualwrite_redo_table")
class CreateDualwriteRedoTable(MigrateOperation):
    """`op.create_dualwrite_redo_table(schema=None)`: create `kafka_transaction_redo`."""

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema

    @classmethod
    def create_dualwrite_redo_table(cls, operations: Operations, *, schema: str | None = None) -> None:
        """Carry out `op.create_dualwrite_redo_table`."""
        operations.invoke(cls(schema))

    def reverse(self) -> DropDualwriteRedoTable:
        """Return the operation that undoes this one."""
        return DropDualwriteRedoTable(self.schema)


@Operations.register_operation("drop_dualwrite_redo_table")
class DropDualwriteRedoTable(MigrateOperation):
    """`op.drop_dualwrite_redo_table(schema=None)`. Recover first: blocks stored in it would never reach Kafka."""

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema

    @classmethod
    def drop_dualwrite_redo_table(cls, operations: Operations, *, schema: str | None = None) -> None:
        """Carry out `op.drop_dualwrite_redo_table`."""
        operations.invoke(cls(schema))

    def reverse(self) -> CreateDualwriteRedoTable:
        """Return the operation that undoes this one."""
        return CreateDualwriteRedoTable(self.schema)


@Operations.register_operation("create_dualwrite_outbox_table")
class CreateDualwriteOutboxTable(MigrateOperation):
    """`op.create_dualwrite_outbox_table(schema=None)`: create `kafka_transaction_outbox`.

    Raises ConfigError unless this is PostgreSQL.
    """

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema

    @classmethod
    def create_dualwrite_outbox_table(cls, operations: Operations, *, schema: str | None = None) -> None:
        """Carry out `op.create_dualwrite_outbox_table`."""
        operations.invoke(cls(schema))

    def reverse(self) -> DropDualwriteOutboxTable:
        """Return the operation that undoes this one."""
        return DropDualwriteOutboxTable(self.schema)


@Operations.register_operation("drop_dualwrite_outbox_table")
class DropDualwriteOutboxTable(MigrateOperation):
    """`op.drop_dualwrite_outbox_table(schema=None)`. Recover first: blocks stored in it would never reach Kafka."""

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema

    @classmethod
    def drop_dualwrite_outbox_table(cls, operations: Operations, *, schema: str | None = None) -> None:
        """Carry out `op.drop_dualwrite_outbox_table`."""
        operations.invoke(cls(schema))

    def reverse(self) -> CreateDualwriteOutboxTable:
        """Return the operation that undoes this one."""
        return CreateDualwriteOutboxTable(self.schema)


@Operations.implementation_for(CreateDualwriteOutboxTable)
def _create_outbox(operations: Operations, operation: CreateDualwriteOutboxTable) -> None:
    assert_has_outboxes(operations.get_context().dialect)
    operations.impl.create_table(kafka_transaction_outbox.to_metadata(sa.MetaData(schema=operation.schema)))


@Operations.implementation_for(DropDualwriteOutboxTable)
def _drop_outbox(operations: Operations, operation: DropDualwriteOutboxTable) -> None:
    operations.drop_table(kafka_transaction_outbox.name, schema=operation.schema)


@Operations.implementation_for(CreateDualwriteRedoTable)
def _create_redo(operations: Operations, operation: CreateDualwriteRedoTable) -> None:
    operations.impl.create_table(kafka_transaction_redo.to_metadata(sa.MetaData(schema=operation.schema)))


@Operations.implementation_for(DropDualwriteRedoTable)
def _drop_redo(operations: Operations, operation: DropDualwriteRedoTable) -> None:
    operations.drop_table(kafka_transaction_redo.name, schema=operation.schema)


@Operations.implementation_for(AddDualwriteManifest)
def _add_manifest(operations: Operations, operation: AddDualwriteManifest) -> None:
    context = operations.get_context()
    table = in_schema(kafka_transaction_state, operation.schema)
    if context.as_sql or (context.bind is not None and lacks_manifest(context.bind, table)):
        operations.add_column(table.name, sa.Column("manifest", sa.Text, nullable=True), schema=operation.schema)


@Operations.implementation_for(DropDualwriteManifest)
def _drop_manifest(operations: Operations, operation: DropDualwriteManifest) -> None:
    operations.drop_column(kafka_transaction_state.name, "manifest", schema=operation.schema)


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
