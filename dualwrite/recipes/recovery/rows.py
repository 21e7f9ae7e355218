"""The state rows of many transactional ids, as recovery first looks at them: without locks."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError

from dualwrite.recipes.core.state_row import missing_table
from dualwrite.recipes.sql.database_identity import DatabaseIdentity
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyStateStore, kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import AS_NAMED, in_schema

_IDS_PER_QUERY = 500  # databases limit the parameters of one statement


def stored_texts(
    engine: sa.Engine, pinned: PinnedTables, *, prefix: str | None, transactional_ids: Collection[str]
) -> dict[str, str]:
    """What the rows of a prefix (None: of no prefix), and of these ids, hold.

    Raises StateRowError where the table is missing.
    """
    table = in_schema(kafka_transaction_state, pinned.schema)
    queries = _queries(table, prefix, sorted(transactional_ids))
    try:
        with engine.connect() as connection:
            rows = [row for query in queries for row in connection.execute(query, execution_options=AS_NAMED).all()]
    except (OperationalError, ProgrammingError) as error:
        if sa.inspect(engine).has_table(table.name, schema=table.schema):
            raise
        raise missing_table(table.name, otherwise="create_state_table(engine)") from error
    return {
        row.transactional_id: row.prepared_transaction_state
        for row in rows
        if row.transactional_id in transactional_ids
        or (prefix is not None and row.transactional_id.startswith(prefix))  # LIKE may not tell A from a
    }


def _queries(table: sa.Table, prefix: str | None, ids: list[str]) -> Iterator[sa.Select[tuple[str, str]]]:
    found = sa.select(table.c.transactional_id, table.c.prepared_transaction_state)
    if prefix is not None:
        yield found.where(table.c.transactional_id.startswith(prefix, autoescape=True))
    for start in range(0, len(ids), _IDS_PER_QUERY):
        yield found.where(table.c.transactional_id.in_(ids[start : start + _IDS_PER_QUERY]))


def known_database(
    engine: sa.Engine, schema: str | None, *, may_make: bool = False
) -> tuple[PinnedTables, DatabaseIdentity]:
    """Where the rows are, and what the database adds to their ids; no id is its own where there is nothing yet, and
    nothing may be made. Raises as `SqlAlchemyStateStore.identity`.
    """
    store = SqlAlchemyStateStore(engine, schema)
    return store.pinned, store.identity(may_make=may_make)
