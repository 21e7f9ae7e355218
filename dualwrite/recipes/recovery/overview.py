"""The transactional ids of a database by its tables, read without locks: for a view, not for a decision."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import sqlalchemy as sa

from dualwrite.client.admin.results import TransactionDescription
from dualwrite.client.transactions.recovery import Described, DescribedState, Finding, find
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.proof import Verdict, manifest_of, settled_text, verdict_in
from dualwrite.recipes.recovery.stored_rows import StoredRow, known_database, outboxes_with_blocks, stored_rows
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sql.redo_statements import REDO_TABLE, SELECT_COUNTS
from dualwrite.recipes.sqlalchemy.own_statements import own_text


class IdInDatabase(NamedTuple):
    """One id as the database has it."""

    row: StoredRow
    stored_blocks: int = 0
    stored_since_ms: int | None = None
    """When the oldest stored block was stored, in milliseconds since 1970; None if none is."""


def ids_in_database(
    engine: sa.Engine, schema: str | None, *, prefix: str, kafka_ids: Collection[str]
) -> dict[str, IdInDatabase]:
    """Return the ids of a prefix and those of `kafka_ids`, by their Kafka ids. Raises as `known_database` does."""
    pinned, identity = known_database(engine, schema)
    names = {name for each in kafka_ids if (name := identity.name_of(each)) is not None}
    rows = stored_rows(engine, pinned, prefix=prefix, transactional_ids=names)
    counts = _stored_counts(engine, pinned)
    return {
        identity.kafka_id(name): IdInDatabase(row, counts.get(name, 0), row.waiting.since_ms)
        for name, row in rows.items()
    }


def _stored_counts(engine: sa.Engine, pinned: PinnedTables) -> Mapping[str, int]:
    with engine.connect() as connection:
        counts = {name: outbox.blocks for name, outbox in outboxes_with_blocks(connection, pinned).items()}
        if sa.inspect(connection).has_table(REDO_TABLE, schema=pinned.schema):
            counts |= {row[0]: row[1] for row in connection.execute(own_text(pinned.sql(SELECT_COUNTS)))}
        return counts


class Owed(NamedTuple):
    """The records of the row's transaction, which the database has decided and Kafka has aborted."""

    records: int | None
    """How many they are; None if the row has no manifest that says it."""


def owed_by(row: StoredRow, description: TransactionDescription | None, transaction_version: int) -> Owed | None:
    """Return the owed records by the row and the coordinator, without reading the log; None if none are known.

    A row or a state that cannot be read shows none.
    """
    if description is None:
        return None
    if description.producer_id < 0 or description.producer_epoch < 0:
        return None
    pair = PreparedTxnState.of(producer_id=description.producer_id, producer_epoch=description.producer_epoch)
    try:
        stored = PreparedTxnState(row.state)
        described = Described(DescribedState(description.state), pair, -1)
        if row.manifest == settled_text(stored) or verdict_in(stored, row.manifest) is Verdict.COMMITTED:
            return None
        if find(stored, described, transaction_version) is not Finding.ABORTED:
            return None
        manifest = manifest_of(stored, row.manifest)
    except ValueError:
        return None
    return Owed(None if manifest is None else sum(part.record_count for part in manifest.partitions))
