"""`adopt`: an operator's decision which of two databases keeps the transactional ids, if one is a copy of the other.

adopt(engine, "moved")    # the original is gone for good: this database keeps the ids
adopt(engine, "copied")   # the original is still in use: this database gets ids of its own
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import sqlalchemy as sa

from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.sql.identity_table import (
    IDENTITY_TABLE,
    SELECT_IDENTITY,
    Place,
    identity_is_missing,
    insert_identity,
    place_of,
)
from dualwrite.recipes.sql.outbox_statements import RAISE_SEQUENCE
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE
from dualwrite.recipes.sql.pinned_tables import STATE_TABLE, OnTables, Pin
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.tables import OnConnection

__all__ = ["Adopted", "Adoption", "adopt"]

Adoption = Literal["moved", "copied"]

_UPDATE_PLACE: Final = f"UPDATE {IDENTITY_TABLE} SET made_in_server = :server, made_in_database = :database"
_FORGET: Final = (
    f"UPDATE {STATE_TABLE} SET prepared_transaction_state = '', manifest = NULL WHERE prepared_transaction_state <> ''"
)


@dataclass(frozen=True, slots=True)
class Adopted:
    """The changes of `adopt`. `suffix_before` is None if there was none."""

    made_in: Place
    found_in: Place
    suffix_before: str | None
    suffix: str
    rows_emptied: int


def adopt(engine: sa.Engine, how: Adoption, *, schema: str | None = None, force: bool = False) -> Adopted:
    """Let this database keep its transactional ids, or give it ids of its own.

    "moved" keeps the ids and their in-doubt transactions. Blocks that wait in outboxes keep their place before later
    ones, also in a copy by logical replication, which has the rows and would number new ones from 1. "copied" creates a
    new suffix, empties the state rows, and deletes stored records: in-doubt transactions and stored blocks stay with
    the original, which decides and publishes them. Stop the writers of this database first.

    Raises IllegalStateError if the database is, as far as it can tell, where its state table was created, unless
    `force` is set: a physical copy (a backup of the files, a snapshot of the disk) identifies itself like the original.
    Also raises ConfigError, and StateRowError if a table is missing, or for "moved" the identity row.
    """
    if how not in get_args(Adoption):
        raise ConfigError(f"adopt takes 'moved' or 'copied', not {how!r}")
    pinned = SqlAlchemyDatabase(engine, schema).pinned
    with engine.begin() as connection:
        return blocking.run(_adopt(OnConnection(connection, Pin(pinned)), how, force=force))


async def _adopt(database: OnTables, how: Adoption, *, force: bool) -> Adopted:
    found = await database.first_row(SELECT_IDENTITY, {})
    if found is None and how == "moved":
        raise identity_is_missing()
    suffix, server, name = found or (None, None, None)
    made_in, found_in = Place(server, name), await place_of(database)
    if found is not None and not force and not made_in.is_other_than(found_in):
        raise IllegalStateError(
            f"as far as can be told ({found_in}), the state table was made in this database; nothing was changed: use "
            "force if it is a copy of another database's files"
        )
    if how == "moved":
        if database.dialect == "postgresql" and await database.has_outbox_table():
            await database.rows(RAISE_SEQUENCE, {"name": database.pin.sql(OUTBOX_TABLE)})
        await database.changed(_UPDATE_PLACE, {"server": found_in.server, "database": found_in.database})
        return Adopted(made_in, found_in, suffix, str(suffix), 0)
    if await database.has_outbox_table():
        await database.changed(f"DELETE FROM {OUTBOX_TABLE}", {})  # the original publishes it
    emptied = await database.changed(_FORGET, {})
    await database.changed(f"DELETE FROM {IDENTITY_TABLE}", {})
    return Adopted(made_in, found_in, suffix, await insert_identity(database), emptied)
