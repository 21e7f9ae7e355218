"""Read the state rows of many ids, and the records stored beside them, without locks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError

from dualwrite.errors import RetriableError
from dualwrite.recipes.core.database_identity import DatabaseIdentity
from dualwrite.recipes.core.leases import transactional_id_of
from dualwrite.recipes.core.own_transactions import in_own_transaction
from dualwrite.recipes.core.store import DatabaseTransaction, missing_table
from dualwrite.recipes.sql.lease_statements import LEASE_TABLE, NOW_MS, SELECT_HELD
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE, SELECT_LAST_BATCHES
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sqlalchemy.outbox_table import has_outboxes, select_outboxes
from dualwrite.recipes.sqlalchemy.own_statements import AS_NAMED, own_text
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase, kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import in_schema

_IDS_PER_QUERY: Final = 500  # databases limit the parameters of one statement


class StoredRecords(NamedTuple):
    """The records that the database stores for an id, beside its row.

    `since_ms`: when the oldest block that waits for Kafka was stored; None if there is none. `kept_as`: the prepared
    state of the transaction that published the last batch of this outbox, whose rows are kept; None if there are none.
    `has_publisher`: a living process has the lease of this outbox, and publishes it.
    """

    since_ms: int | None = None
    kept_as: str | None = None
    has_publisher: bool = False
    blocks: int = 0
    """How many blocks wait."""


NOTHING_WAITS: Final = StoredRecords()


class StoredRow(NamedTuple):
    """The texts in a state row, which are the prepared state and its manifest, and the records stored beside it.

    `state` is None for an outbox that has no row.
    """

    state: str | None
    manifest: str
    waiting: StoredRecords = NOTHING_WAITS


def stored_rows(
    engine: sa.Engine, pinned: PinnedTables, *, prefix: str | None, transactional_ids: Collection[str]
) -> dict[str, StoredRow]:
    """Return the texts of the rows of a prefix (None: no prefix) and of these ids, read without locks.

    An outbox in which blocks wait is returned even if its row is missing.

    Raises StateRowError if the table does not exist.
    """
    table = in_schema(kafka_transaction_state, pinned.schema)
    queries = _queries(table, prefix, sorted(transactional_ids))
    try:
        with engine.connect() as connection:
            rows = [row for query in queries for row in connection.execute(query, execution_options=AS_NAMED).all()]
            waiting = _records_beside_rows(connection, pinned)
    except (OperationalError, ProgrammingError) as error:
        if sa.inspect(engine).has_table(table.name, schema=table.schema):
            raise
        raise missing_table(table.name, otherwise="create_state_table(engine)") from error
    found = {
        transactional_id: StoredRow(None, "", records)
        for transactional_id, records in waiting.items()
        if records.since_ms is not None
    }
    found |= {
        row.transactional_id: StoredRow(
            row.prepared_transaction_state, row.manifest or "", waiting.get(row.transactional_id, NOTHING_WAITS)
        )
        for row in rows
    }
    return {
        transactional_id: row
        for transactional_id, row in found.items()
        if transactional_id in transactional_ids
        or (prefix is not None and transactional_id.startswith(prefix))  # LIKE may ignore case
    }


def _records_beside_rows(connection: sa.Connection, pinned: PinnedTables) -> dict[str, StoredRecords]:
    """Return the records in outboxes, by id."""
    found: dict[str, StoredRecords] = {}
    if not has_outbox_table(connection, pinned):
        return found
    for transactional_id, kept_as in connection.execute(own_text(pinned.sql(SELECT_LAST_BATCHES))):
        found[transactional_id] = StoredRecords(kept_as=kept_as)
    outboxes = connection.execute(own_text(pinned.sql(select_outboxes(connection.dialect)))).all()
    held = _held_ids(connection, pinned) if outboxes else ()
    for transactional_id, blocks, since_ms in outboxes:
        kept_as = found.get(transactional_id, NOTHING_WAITS).kept_as
        found[transactional_id] = StoredRecords(since_ms, kept_as, transactional_id in held, blocks)
    return found


def has_outbox_table(bind: sa.Engine | sa.Connection, pinned: PinnedTables) -> bool:
    """Return whether the database may have outboxes."""
    return has_outboxes(bind.dialect) and sa.inspect(bind).has_table(OUTBOX_TABLE, schema=pinned.schema)


def _held_ids(connection: sa.Connection, pinned: PinnedTables) -> set[str]:
    """Return the ids of pools whose leases living processes have."""
    if not sa.inspect(connection).has_table(LEASE_TABLE, schema=pinned.schema):
        return set()
    sql = pinned.sql(SELECT_HELD + NOW_MS[connection.dialect.name])
    return {transactional_id_of(*held) for held in connection.execute(own_text(sql))}


def _queries(table: sa.Table, prefix: str | None, ids: list[str]) -> Iterator[sa.Select[tuple[str, str, str | None]]]:
    found = sa.select(table.c.transactional_id, table.c.prepared_transaction_state, table.c.manifest)
    if prefix is not None:
        yield found.where(table.c.transactional_id.startswith(prefix, autoescape=True))
    for start in range(0, len(ids), _IDS_PER_QUERY):
        yield found.where(table.c.transactional_id.in_(ids[start : start + _IDS_PER_QUERY]))


def known_database(
    engine: sa.Engine, schema: str | None, *, may_make: bool = False
) -> tuple[PinnedTables, DatabaseIdentity]:
    """Return the tables, and the identity whose suffix the database adds to its ids.

    A database without an identity gets one if `may_make` is set; otherwise no id counts as its own. Raises as
    `SqlAlchemyDatabase.identity` does.
    """
    store = SqlAlchemyDatabase(engine, schema)
    return store.pinned, store.identity(may_make=may_make)


async def note(
    database: SqlAlchemyDatabase, transactional_id: str, row: StoredRow, noted: str, lock_timeout_ms: int
) -> None:
    """Put a note in front of the manifest in a row. Raises RetriableError if the row is another one than was read."""

    async def write(transaction: DatabaseTransaction) -> None:
        state = await transaction.lock(transactional_id, timeout_ms=lock_timeout_ms)
        text = await transaction.read_manifest(transactional_id)
        if str(state) != row.state or text not in (row.manifest, noted):
            raise RetriableError(
                f"the state row of transactional id {transactional_id!r} has changed since it was read: it named "
                f"{row.state}, and names {state} now, or its proof is another one. A process uses the id; nothing was "
                "changed: stop it, and look again"
            )
        if text != noted:
            await transaction.write(transactional_id, previous=state, new=state, manifest=noted)
            await transaction.commit()

    await in_own_transaction(database.begin, write)
