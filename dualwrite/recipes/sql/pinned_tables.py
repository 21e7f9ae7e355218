"""Which tables a writer means: found once, at first use, and named in full from then on.

A table without its schema is whatever `search_path`, USE, a temporary table or a schema_translate_map make of it at the
moment, and a block may change those. A state row in another table than the one that recovery reads decides nothing. So
the tables are looked up once, on a connection of the writer's own, and PostgreSQL compares the oid in each statement
that locks: a table that was dropped and made anew has forgotten what it had decided.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

from dualwrite.errors import ConfigError, StateTableError
from dualwrite.recipes.sql.database_identity import Place

ResultT = TypeVar("ResultT")

STATE_TABLE: Final = "kafka_transaction_state"

OID: Final = "STATE_TABLE_OID"
"""Stands in PostgreSQL's statements for the oid of the pinned state table."""

_TABLES: Final = re.compile(r"\b(?:kafka_transaction_(?:state|lease|database)|kafka_consumed_offset)\b")
_UNFIT: Final = re.compile(r"[:%'\"\\{}]")


@dataclass(frozen=True, slots=True)
class PinnedTables:
    """The schema that our tables are in, None where the database has none; on PostgreSQL the state table's oid."""

    schema: str | None
    quoted_schema: str | None
    oid: int | None = None

    def sql(self, text: str) -> str:
        """A statement that names our tables alone, with their full names."""
        return _in_full(text, self.quoted_schema, self.oid)


@cache
def _in_full(text: str, quoted_schema: str | None, oid: int | None) -> str:
    named = text if quoted_schema is None else _TABLES.sub(lambda found: f"{quoted_schema}.{found[0]}", text)
    return named if oid is None else named.replace(OID, str(oid))


def checked_schema(schema: Any) -> str | None:
    """A setting. Raises ConfigError."""
    if schema is None:
        return None
    if not isinstance(schema, str) or not schema or _UNFIT.search(schema):
        raise ConfigError(f"schema takes the name of a schema, as it is and without quotes, not {schema!r}")
    return schema


# ---- PostgreSQL, as statements that somebody carries out; parameters are written `:name` ----------------------------

Statement = tuple[str, Mapping[str, Any]]
Rows = Sequence[Sequence[Any]]
Asking = Generator[Statement, Rows, ResultT]

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
_MAY_ASK: Final = "SELECT has_function_privilege(to_regprocedure('pg_catalog.pg_control_system()'), 'EXECUTE')"
_SYSTEM: Final = "SELECT CAST(system_identifier AS text) FROM pg_catalog.pg_control_system()"
_DATABASE: Final = "SELECT CAST(oid AS text) FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"


def quoted(name: str) -> str:
    """As PostgreSQL takes it to mean itself."""
    return '"' + name.replace('"', '""') + '"'


def find_state_table(schema: str | None) -> Asking[PinnedTables | None]:
    """The state table in `schema`, or where search_path leads to; None where there is none.

    Raises StateTableError where it is none that could keep a decision, or where another one could be meant.
    """
    name = STATE_TABLE if schema is None else f"{quoted(schema)}.{STATE_TABLE}"
    found = yield _FIND, {"name": name}
    if not found:
        return None
    where, oid, kind, persistence = found[0]
    if kind != "r" or persistence != "p" or _UNFIT.search(where):
        raise StateTableError(
            f"{where}.{STATE_TABLE} is {_what_it_is(kind, persistence)}, which cannot keep a decision for certain; "
            "nothing was written: create an ordinary table, and name its schema by the setting schema="
        )
    if schema is None:
        others = yield _OTHERS, {"name": STATE_TABLE, "oid": oid}
        if others:
            raise _two_tables(where, [other for (other,) in others])
    return PinnedTables(where, quoted(where), oid)


def _what_it_is(kind: str, persistence: str) -> str:
    if kind != "r":
        return "no ordinary table"
    return {"t": "a temporary table", "u": "an unlogged table"}.get(persistence, "in a schema with an unusual name")


def _two_tables(found: str, others: list[str]) -> StateTableError:
    named = ", ".join(f"{other}.{STATE_TABLE}" for other in others)
    return StateTableError(
        f"this database has more than one state table: {found}.{STATE_TABLE}, where search_path leads to, and {named}; "
        "nothing was written, because a decision in the wrong one is found by nobody: name the schema of the one that "
        "is meant by the setting schema= (of commands: --schema)"
    )


def find_schema(schema: str | None, table: str) -> Asking[PinnedTables]:
    """Where a table is that decides nothing, or would be created."""
    if schema is None:
        found = yield _FIND, {"name": table}
        if not found:
            found = yield _CURRENT_SCHEMA, {}
        schema = checked_schema(found[0][0])
    return PinnedTables(schema, None if schema is None else quoted(schema))


def present_place() -> Asking[Place]:
    """Which database this is. A standby that is promoted keeps both; a dump that is loaded elsewhere gets others."""
    may_ask = yield _MAY_ASK, {}
    system = (yield _SYSTEM, {}) if may_ask[0][0] else [(None,)]
    database = yield _DATABASE, {}
    return Place(system[0][0], database[0][0])


def assert_still_there(pinned: PinnedTables) -> Asking[None]:
    """For a row that was not found. Raises StateTableError where the table is another one than was pinned."""
    if pinned.oid is not None:
        found = yield _OID_NOW, {"schema": pinned.schema, "name": STATE_TABLE}
        if not found or found[0][0] != pinned.oid:
            raise replaced(pinned)


def replaced(pinned: PinnedTables) -> StateTableError:
    """The pinned table is gone."""
    return StateTableError(
        f"the table {pinned.schema}.{STATE_TABLE} was dropped, or replaced by another one, since this writer first "
        "used it; nothing was written: with its rows went what tells the decisions that Kafka has not carried out "
        "yet. Bring it back from a backup, or see what is in doubt with `dualwrite top`; then make a new writer"
    )


def carried_out(steps: Asking[ResultT], ask: Callable[[str, Mapping[str, Any]], Rows]) -> ResultT:
    """The result of `steps`, whose statements `ask` answers."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(ask(*statement))
    except StopIteration as ended:
        result: ResultT = ended.value
        return result
