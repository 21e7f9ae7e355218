"""The tables of a writer: looked up once, at first use, and named with their schema from then on.

Without a schema, the meaning of a table name depends on `search_path`, USE, temporary tables and a
schema_translate_map, and a block may change those. A state row in a table that recovery does not read decides nothing.
So the tables are looked up once, on a connection of the writer's own. On PostgreSQL each locking statement also
compares the table's oid, because a table that was dropped and created again has lost its decisions.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from dualwrite.errors import ConfigError, StateTableError
from dualwrite.exact import exact

ResultT = TypeVar("ResultT")

STATE_TABLE: Final = "kafka_transaction_state"
OUTBOX_TABLE: Final = "kafka_transaction_outbox"

OID: Final = "STATE_TABLE_OID"
"""Placeholder in PostgreSQL's statements for the oid of the pinned state table."""

_TABLES: Final = re.compile(r"\b(?:kafka_transaction_(?:state|lease|database|outbox)|kafka_consumed_offset)\b")
_UNFIT: Final = re.compile(r"[:%'\"\\{}]")


class PinnedTables(NamedTuple):
    """The schema of dualwrite's tables, None if the database has no schemas; on PostgreSQL the state table's oid."""

    schema: str | None
    quoted_schema: str | None
    oid: int | None = None

    def sql(self, text: str) -> str:
        """Return the statement with the schema added to the names of dualwrite's tables, and the oid filled in."""
        return _qualified(text, self.quoted_schema, self.oid)


@lru_cache(maxsize=1024)
def _qualified(text: str, quoted_schema: str | None, oid: int | None) -> str:
    named = text if quoted_schema is None else _TABLES.sub(lambda found: f"{quoted_schema}.{found[0]}", text)
    return named if oid is None else named.replace(OID, str(oid))


def checked_schema(schema: Any) -> str | None:
    """Return the setting `schema`. Raises ConfigError if it cannot name a schema."""
    if schema is None:
        return None
    if not isinstance(schema, str) or not schema or _UNFIT.search(schema):
        raise ConfigError(f"schema takes the name of a schema without quotes, not {schema!r}")
    return exact(schema)


class Pin:
    """The location of our tables, queried once; shared by all transactions of one writer or pool."""

    __slots__ = ("has_outbox_table", "tables")

    def __init__(self, tables: PinnedTables | None = None) -> None:
        self.tables = tables
        self.has_outbox_table = False
        """Whether `kafka_transaction_outbox` was found."""

    @property
    def located(self) -> PinnedTables:
        assert self.tables is not None, "the tables are located before the first statement on their rows"
        return self.tables

    def sql(self, text: str) -> str:
        """Return the statement as `PinnedTables.sql` does; before the tables are located it names none of them."""
        if self.tables is None:
            assert not _TABLES.search(text), text
            return text
        _, quoted_schema, oid = self.tables
        return _qualified(text, quoted_schema, oid)


class OnTables(ABC):
    """Executes statements in one transaction; parameters are written `:name`, our tables without their schema."""

    pin: Pin
    dialect: str
    """The name of the database's dialect in SQLAlchemy."""

    @abstractmethod
    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Execute a SELECT and return its rows."""

    @abstractmethod
    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        """Execute a statement and return the number of rows it changed."""

    @abstractmethod
    async def has_table(self, name: str) -> bool:
        """Return whether one of our tables exists."""

    async def first_row(self, sql: str, values: Mapping[str, Any]) -> Sequence[Any] | None:
        found = await self.rows(sql, values)
        return found[0] if found else None

    async def query(self, steps: Query[ResultT]) -> ResultT:
        try:
            statement = next(steps)
            while True:
                statement = steps.send(await self.rows(*statement))
        except StopIteration as ended:
            result: ResultT = ended.value
            return result

    async def has_outbox_table(self) -> bool:
        if not self.pin.has_outbox_table:
            self.pin.has_outbox_table = await self.has_table(OUTBOX_TABLE)
        return self.pin.has_outbox_table


# ---- PostgreSQL: generators of statements, which the backend executes; parameters are written `:name` ---------------

Statement = tuple[str, Mapping[str, Any]]
Rows = Sequence[Sequence[Any]]
Query = Generator[Statement, Rows, ResultT]
"""Yields statements, is sent the rows of each, and returns the result; `OnTables.query` drives it."""

_FIND: Final = (
    "SELECT CAST(n.nspname AS text), CAST(c.oid AS bigint), CAST(c.relkind AS text), CAST(c.relpersistence AS text)"
    " FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE c.oid = to_regclass(:name)"
)
_OTHERS: Final = (
    "SELECT CAST(n.nspname AS text) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n"
    " ON n.oid = c.relnamespace WHERE c.relname = :name AND c.relkind IN ('r', 'p') AND c.oid <> :oid"
    " AND c.relpersistence <> 't' AND has_schema_privilege(n.oid, 'USAGE') ORDER BY 1"
)
_CURRENT_SCHEMA: Final = "SELECT CAST(current_schema() AS text)"
_OID_NOW: Final = (
    "SELECT CAST(c.oid AS bigint) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n"
    " ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relname = :name"
)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def find_state_table(schema: str | None) -> Query[PinnedTables | None]:
    """Find the state table in `schema`, or the one that search_path resolves to; None if there is none.

    Raises StateTableError if that table cannot keep decisions, or if another schema has a state table too.
    """
    name = STATE_TABLE if schema is None else f"{quoted(schema)}.{STATE_TABLE}"
    found = yield _FIND, {"name": name}
    if not found:
        return None
    where, oid, kind, persistence = found[0]
    if kind != "r" or persistence != "p" or _UNFIT.search(where):
        raise StateTableError(
            f"{where}.{STATE_TABLE} is {_kind_of(kind, persistence)}, which may not keep a decision; nothing was "
            "written: create an ordinary table, and set schema= to its schema"
        )
    if schema is None:
        others = yield _OTHERS, {"name": STATE_TABLE, "oid": oid}
        if others:
            raise _two_tables(where, [other for (other,) in others])
    return PinnedTables(where, quoted(where), oid)


def _kind_of(kind: str, persistence: str) -> str:
    if kind != "r":
        return "not an ordinary table"
    return {"t": "a temporary table", "u": "an unlogged table"}.get(persistence, "in a schema with an unusual name")


def _two_tables(found: str, others: list[str]) -> StateTableError:
    named = ", ".join(f"{other}.{STATE_TABLE}" for other in others)
    return StateTableError(
        f"this database has more than one state table: {found}.{STATE_TABLE}, which search_path resolves to, and "
        f"{named}; nothing was written, because recovery would not find a decision in the wrong one: set schema= (of "
        "commands: --schema) to the schema of the right one"
    )


def find_schema(schema: str | None, table: str) -> Query[PinnedTables]:
    """Find the schema of a table other than the state table, existing or to be created."""
    if schema is None:
        found = yield _FIND, {"name": table}
        if not found:
            found = yield _CURRENT_SCHEMA, {}
        schema = checked_schema(found[0][0])
    return PinnedTables(schema, None if schema is None else quoted(schema))


def assert_still_there(pinned: PinnedTables) -> Query[None]:
    """Check the table after a row was not found. Raises StateTableError if it is no longer the pinned one."""
    if pinned.oid is not None:
        found = yield _OID_NOW, {"schema": pinned.schema, "name": STATE_TABLE}
        if not found or found[0][0] != pinned.oid:
            raise table_replaced(pinned)


def table_replaced(pinned: PinnedTables) -> StateTableError:
    return StateTableError(
        f"the table {pinned.schema}.{STATE_TABLE} was dropped or replaced since this writer first used it; nothing "
        "was written: its rows were the only record of decisions that Kafka has not completed yet. Restore it from a "
        "backup, or look for dual writes in doubt with `dualwrite top`; then create a new writer"
    )
