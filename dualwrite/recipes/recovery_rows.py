"""The state rows of many transactional ids, as recovery first looks at them: without locks."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError

from dualwrite.errors import StateRowError
from dualwrite.recipes.state_table import kafka_transaction_state

_IDS_PER_QUERY = 500  # databases limit the parameters of one statement

_T = kafka_transaction_state
_ROWS = sa.select(_T.c.transactional_id, _T.c.prepared_transaction_state)


def stored_texts(engine: sa.Engine, *, prefix: str | None, transactional_ids: Collection[str]) -> dict[str, str]:
    """What the rows of a prefix (None: of no prefix), and of these ids, hold.

    Raises StateRowError where the table is missing.
    """
    try:
        with engine.connect() as connection:
            rows = [
                row for query in _queries(prefix, sorted(transactional_ids)) for row in connection.execute(query).all()
            ]
    except (OperationalError, ProgrammingError) as error:
        if sa.inspect(engine).has_table(_T.name):
            raise
        raise StateRowError(
            "the table kafka_transaction_state does not exist in this database; nothing was changed: give the database "
            "in which the dual writes are made, or create it there (dualwrite init-db, or create_state_table(engine))"
        ) from error
    return {
        row.transactional_id: row.prepared_transaction_state
        for row in rows
        if row.transactional_id in transactional_ids
        or (prefix is not None and row.transactional_id.startswith(prefix))  # LIKE may not tell A from a
    }


def _queries(prefix: str | None, ids: list[str]) -> Iterator[sa.Select[tuple[str, str]]]:
    if prefix is not None:
        yield _ROWS.where(_T.c.transactional_id.startswith(prefix, autoescape=True))
    for start in range(0, len(ids), _IDS_PER_QUERY):
        yield _ROWS.where(_T.c.transactional_id.in_(ids[start : start + _IDS_PER_QUERY]))
