"""The table with the suffix of a database's transactional ids, and the check that a database is no copy of another.

A copy of a database contains the suffix too. If the server can identify itself, the table also stores the place where
the suffix was created, and a copy is refused at its first use.

SQL parameters are written `:name`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dualwrite.errors import DatabaseMovedError, StateRowError
from dualwrite.recipes.core.database_identity import DatabaseIdentity, new_suffix
from dualwrite.recipes.sql.pinned_tables import STATE_TABLE, OnTables, Query

IDENTITY_TABLE: Final = "kafka_transaction_database"

SELECT_IDENTITY: Final = f"SELECT suffix, made_in_server, made_in_database FROM {IDENTITY_TABLE}"
_INSERT_IDENTITY: Final = (
    f"INSERT INTO {IDENTITY_TABLE} (only_row, suffix, made_in_server, made_in_database)"
    " VALUES (1, :suffix, :server, :database)"
)
_DECIDED_BEFORE: Final = (
    f"SELECT count(*) FROM {STATE_TABLE} WHERE prepared_transaction_state <> ''"
    f" AND NOT EXISTS (SELECT 1 FROM {IDENTITY_TABLE})"
)
"""Counts decisions without an identity, in one look: another process may insert it and decide between two."""


@dataclass(frozen=True, slots=True)
class Place:
    """A database and its server; None for an identity that the server does not reveal."""

    server: str | None = None
    database: str | None = None

    def is_other_than(self, other: Place) -> bool:
        return _differ(self.server, other.server) or _differ(self.database, other.database)

    def __str__(self) -> str:
        server = "a server that does not reveal its identity" if self.server is None else f"server {self.server}"
        return server if self.database is None else f"database {self.database} of {server}"


def _differ(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other


async def found_identity(database: OnTables) -> DatabaseIdentity | None:
    """Return the identity in the row; None if there is none yet. Raises DatabaseMovedError."""
    found = await database.rows(SELECT_IDENTITY, {})
    if not found:
        return None
    suffix, server, name = found[0]
    made_in, found_in = Place(server, name), await place_of(database)
    if not made_in.is_other_than(found_in):
        return DatabaseIdentity(suffix)
    raise DatabaseMovedError(
        f"the state table was made in {made_in}, and this is {found_in}: the database was copied or moved; nothing "
        "was written to the database or to Kafka, because the original may still use its transactional ids. If the "
        "original is gone for good, run `dualwrite adopt --moved`; if it is still in use, run `dualwrite adopt "
        "--copied`, which gives this database ids of its own",
        made_in=str(made_in),
        found_in=str(found_in),
    )


def identity_is_missing() -> StateRowError:
    """Return the error for state rows without their identity row: it was deleted, or not copied along with them."""
    return StateRowError(
        f"{STATE_TABLE} holds decisions, but {IDENTITY_TABLE} has no row, so the ids under which Kafka knows them are "
        "unknown; nothing was written: restore that row from the database that the tables came from, or, if no "
        "transaction is in doubt, run `dualwrite adopt --copied`"
    )


_MAY_READ_CONTROL: Final = "SELECT has_function_privilege(to_regprocedure('pg_catalog.pg_control_system()'), 'EXECUTE')"
_SYSTEM: Final = "SELECT CAST(system_identifier AS text) FROM pg_catalog.pg_control_system()"
_DATABASE: Final = "SELECT CAST(oid AS text) FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"


async def make_identity(database: OnTables) -> None:
    """Insert the row. Raises StateRowError if there are decisions already, which were made under other ids."""
    ((decisions,),) = await database.rows(_DECIDED_BEFORE, {})
    if decisions:
        raise identity_is_missing()
    await insert_identity(database)


async def insert_identity(database: OnTables) -> str:
    """Insert a new row for the current place, and return its suffix."""
    place, suffix = await place_of(database), new_suffix()
    await database.changed(_INSERT_IDENTITY, {"suffix": suffix, "server": place.server, "database": place.database})
    return suffix


async def place_of(database: OnTables) -> Place:
    """Query the identity of this database, as far as the server reveals it."""
    if database.dialect == "postgresql":
        return await database.query(_place_in_postgres())
    if database.dialect in ("mysql", "mariadb"):  # not server_uuid, which changes in a failover
        schema = database.pin.located.schema
        return Place(None, None if schema is None else schema.lower())
    return Place()


def _place_in_postgres() -> Query[Place]:
    """Query for the place of this database, which a standby keeps, and a dump does not."""
    may_read = yield _MAY_READ_CONTROL, {}
    system = (yield _SYSTEM, {}) if may_read[0][0] else [(None,)]
    database = yield _DATABASE, {}
    return Place(system[0][0], database[0][0])
