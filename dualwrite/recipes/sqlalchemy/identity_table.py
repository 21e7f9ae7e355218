"""The table with the database's identity, on any database that SQLAlchemy reaches: one row, made once.

`schema.sql` and `schema_mysql.sql` create it for people who create tables by hand. The row is made at first use, not by
a script, which would give every database the same suffix.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError

from dualwrite.recipes.core.database_errors import is_conflict
from dualwrite.recipes.sql.database_identity import (
    DECIDED_BEFORE,
    IDENTITY_TABLE,
    INSERT_IDENTITY,
    MOST_ATTEMPTS,
    SELECT_IDENTITY,
    DatabaseIdentity,
    Place,
    checked_place,
    identity_is_missing,
    new_suffix,
    present_place,
)
from dualwrite.recipes.sql.pinned_tables import PinnedTables, execute_query

metadata = sa.MetaData()

kafka_transaction_database = sa.Table(
    IDENTITY_TABLE,
    metadata,
    sa.Column("only_row", sa.Integer, sa.CheckConstraint("only_row = 1"), primary_key=True, autoincrement=False),
    sa.Column("suffix", sa.String(16), nullable=False),
    sa.Column("made_in_server", sa.String(64), nullable=True),
    sa.Column("made_in_database", sa.String(64), nullable=True),
    sa.Column("made_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    mysql_engine="InnoDB",  # whatever the server's default is: others have no transactions
    mariadb_engine="InnoDB",
)


def identity_of(connection: sa.Connection, pinned: PinnedTables) -> DatabaseIdentity | None:
    """What the row says; None where there is none yet. Raises DatabaseMovedError."""
    found = connection.execute(sa.text(pinned.sql(SELECT_IDENTITY))).first()
    if found is None:
        return None
    suffix, server, database = found
    place = place_of(connection, pinned)
    return checked_place(DatabaseIdentity(suffix), made_in=Place(server, database), found_in=place)


def make_identity(connection: sa.Connection, pinned: PinnedTables) -> None:
    """Make the row. Raises StateRowError where decisions are older than it, which were made under other ids."""
    if connection.scalar(sa.text(pinned.sql(DECIDED_BEFORE))):
        raise identity_is_missing()
    insert_identity(connection, pinned)


def insert_identity(connection: sa.Connection, pinned: PinnedTables) -> DatabaseIdentity:
    """Insert a new row, for the present place."""
    place = place_of(connection, pinned)
    suffix = new_suffix()
    values = {"suffix": suffix, "server": place.server, "database": place.database}
    connection.execute(sa.text(pinned.sql(INSERT_IDENTITY)), values)
    return DatabaseIdentity(suffix)


def place_of(connection: sa.Connection, pinned: PinnedTables) -> Place:
    """Which database this is, as far as it tells."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        return execute_query(present_place(), lambda sql, values: connection.execute(sa.text(sql), values).all())
    if dialect in ("mysql", "mariadb"):  # server_uuid would be another one after a failover
        return Place(None, None if pinned.schema is None else pinned.schema.lower())
    return Place()


def found_identity(engine: sa.Engine, pinned: PinnedTables) -> DatabaseIdentity | None:
    """The identity; None where there is none yet. Raises DatabaseMovedError."""
    with engine.begin() as connection:
        return identity_of(connection, pinned)


def ensure_identity(engine: sa.Engine, pinned: PinnedTables) -> DatabaseIdentity:
    """The identity, made where there is none yet; safe when several processes do it at once."""
    for _ in range(MOST_ATTEMPTS):
        found = found_identity(engine, pinned)
        if found is not None:
            return found
        try:
            with engine.begin() as connection:
                make_identity(connection, pinned)
        except IntegrityError:
            continue  # another process made it in the same instant
        except DBAPIError as error:
            if not is_conflict(error):
                raise
    raise identity_is_missing()


_UPDATE_PLACE: Final = f"UPDATE {IDENTITY_TABLE} SET made_in_server = :server, made_in_database = :database"


def note_place(connection: sa.Connection, pinned: PinnedTables) -> None:
    """The database is the original, wherever it is now."""
    place = place_of(connection, pinned)
    connection.execute(sa.text(pinned.sql(_UPDATE_PLACE)), {"server": place.server, "database": place.database})
