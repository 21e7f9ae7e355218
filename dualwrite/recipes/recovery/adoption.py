"""Which of two databases goes on with the transactional ids, where one was made from the other: somebody decides.

adopt(engine, "moved")    # the original is gone for good: this is it now
adopt(engine, "copied")   # the original lives on: this one gets ids of its own
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import sqlalchemy as sa

from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.recipes.sql.database_identity import IDENTITY_TABLE, Place
from dualwrite.recipes.sql.identity_statements import SELECT_IDENTITY, identity_is_missing
from dualwrite.recipes.sql.pinned_tables import STATE_TABLE, PinnedTables
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyStateStore
from dualwrite.recipes.sqlalchemy.tables import insert_identity, note_place, place_of

__all__ = ["Adopted", "Adoption", "adopt"]

Adoption = Literal["moved", "copied"]

_FORGET: Final = f"UPDATE {STATE_TABLE} SET prepared_transaction_state = '' WHERE prepared_transaction_state <> ''"
_DELETE: Final = f"DELETE FROM {IDENTITY_TABLE}"


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was done. `suffix_before` is None where there was none."""

    made_in: Place
    found_in: Place
    suffix_before: str | None
    suffix: str
    rows_emptied: int


def adopt(engine: sa.Engine, how: Adoption, *, schema: str | None = None, force: bool = False) -> Adopted:
    """Let this database go on with its transactional ids, or give it ids of its own.

    "moved" keeps them, and what is in doubt under them. "copied" makes a new suffix and empties the state rows: what is
    in doubt stays with the original, which decides it. Stop the writers of this database before.

    Raises IllegalStateError where the database is where its state table was made, as far as it can tell, unless
    `force`: a physical copy (a backup of the files, a snapshot of the disk) says of itself what the original says.
    Raises in addition ConfigError, and StateRowError where a table is missing, or for "moved" the row.
    """
    if how not in get_args(Adoption):
        raise ConfigError(f"adopt takes 'moved' or 'copied', not {how!r}")
    pinned = SqlAlchemyStateStore(engine, schema).pinned
    with engine.begin() as connection:
        return _adopt(connection, pinned, how, force=force)


def _adopt(connection: sa.Connection, pinned: PinnedTables, how: Adoption, *, force: bool) -> Adopted:
    found: Any = connection.execute(sa.text(pinned.sql(SELECT_IDENTITY))).first()
    if found is None and how == "moved":
        raise identity_is_missing()
    suffix, server, database = found or (None, None, None)
    made_in, found_in = Place(server, database), place_of(connection, pinned)
    if found is not None and not force and not made_in.is_other_than(found_in):
        raise IllegalStateError(
            f"this database is where its state table was made, as far as it can tell ({found_in}); nothing was "
            "changed: force it where you know this for a copy of the files of another one"
        )
    if how == "moved":
        note_place(connection, pinned)
        return Adopted(made_in, found_in, suffix, str(suffix), 0)
    emptied = connection.execute(sa.text(pinned.sql(_FORGET))).rowcount
    connection.execute(sa.text(pinned.sql(_DELETE)))
    new = insert_identity(connection, pinned)
    return Adopted(made_in, found_in, suffix, new.suffix, emptied)
