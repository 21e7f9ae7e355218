"""The table of leases as a value: the product's own SQL on it, by a real engine, and remembered.

Time does not pass in it. A lease that is given back to the clock (`lapsed`) has expired, all others are new.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import dualwrite
from dualwrite.recipes.sql.lease_statements import LEASE_TABLE, ResultT, Steps, TableLeases
from dualwrite.recipes.sql.pinned_tables import OnTables, Pin, PinnedTables
from tests.proof.automaton import DatabaseGone, ask

PREFIX: Final = "payments"

_SCHEMA: Final = (Path(dualwrite.__file__).parent / "recipes" / "sql" / "pool_schema.sql").read_text(encoding="utf-8")
_STATE_TABLE: Final = "CREATE TABLE kafka_transaction_state (transactional_id TEXT)"
_NOW_MS: Final = "1"
_LEASE_MS: Final = 600_000
_EXPIRED_MS: Final = 0
_ME: Final = "me"
_BEATEN: Final = "beaten"

LeaseRow = tuple[str, int, str | None, int]
"""Prefix, slot, owner, and when it expires."""


class OnLeases(NamedTuple):
    """Execute a statement on the table of leases."""

    sql: str
    values: tuple[tuple[str, Any], ...]


class _BeatenError(Exception):
    """Another process changed the same lease first."""


# ---- the world's side -----------------------------------------------------------------------------------------------


@cache
def _engine() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(_SCHEMA)
    connection.execute(_STATE_TABLE)
    return connection


@cache
def executed(
    leases: tuple[LeaseRow, ...], slots: int, owner: str, request: OnLeases
) -> tuple[Any, tuple[LeaseRow, ...]]:
    """Execute a statement of `owner`, where there are state rows of so many slots. Return its result, and the table."""
    engine = _engine()
    engine.execute(f"DELETE FROM {LEASE_TABLE}")
    engine.executemany(f"INSERT INTO {LEASE_TABLE} VALUES (?, ?, ?, ?)", leases)
    engine.execute("DELETE FROM kafka_transaction_state")
    ids = [(f"{PREFIX}-{slot}",) for slot in range(slots)]
    engine.executemany("INSERT INTO kafka_transaction_state VALUES (?)", ids)
    values = {name: owner if value == _ME else value for name, value in request.values}
    try:
        cursor = engine.execute(request.sql, values)
    except sqlite3.IntegrityError:
        return _BEATEN, leases
    result: Any = tuple(cursor.fetchall()) if cursor.description else cursor.rowcount
    columns = "prefix, slot, owner, expires_at_ms"
    return result, tuple(engine.execute(f"SELECT {columns} FROM {LEASE_TABLE} ORDER BY prefix, slot"))


def lapsed(leases: tuple[LeaseRow, ...], expired: LeaseRow) -> tuple[LeaseRow, ...]:
    """Return the table after a lease has expired."""
    return tuple((*lease[:3], _EXPIRED_MS) if lease == expired else lease for lease in leases)


def has_expired(leases: tuple[LeaseRow, ...]) -> bool:
    """Return whether the lease of some owner has expired."""
    return any(owner is not None and expires_ms == _EXPIRED_MS for _, _, owner, expires_ms in leases)


def leases_that_may_lapse(leases: tuple[LeaseRow, ...], owners: Container[str]) -> list[LeaseRow]:
    """Return the leases of these owners that have not expired."""
    return [lease for lease in leases if lease[2] in owners and lease[3] != _EXPIRED_MS]


# ---- the process's side ---------------------------------------------------------------------------------------------


class _CheckedStatements(OnTables):
    """Statements that go to the world, each by itself."""

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        found: Sequence[Sequence[Any]] = await self._ask(sql, values)
        return found

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        count = await self._ask(sql, values)
        assert isinstance(count, int)
        return count

    async def has_table(self, name: str) -> bool:
        return True

    @staticmethod
    async def _ask(sql: str, values: Mapping[str, Any]) -> Any:
        reply = await ask(OnLeases(sql, tuple(sorted(values.items()))))
        if reply is None:
            raise DatabaseGone(sql)
        if reply == _BEATEN:
            raise _BeatenError(sql)
        return reply


class _CheckedDatabase:
    """The database of the real leases, whose table is the world's."""

    errors = (DatabaseGone,)
    now_ms = _NOW_MS
    locks_whole = False

    async def ensure_table(self, table: str) -> PinnedTables:
        return PinnedTables(None, None)

    async def in_transaction(self, steps: Steps[ResultT], pin: Pin) -> ResultT:
        return await steps(_CheckedStatements())

    def was_inserted_by_others(self, error: Exception) -> bool:
        return isinstance(error, _BeatenError)


class CheckedLeases(TableLeases):
    """The real leases, on the world's table."""

    def __init__(self, prefix: str = PREFIX) -> None:
        super().__init__(_CheckedDatabase(), prefix=prefix, owner=_ME, lease_ms=_LEASE_MS)
