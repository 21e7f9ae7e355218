"""The table of stored blocks as a value: the product's own SQL on it, by a real engine, and remembered.

Stored bytes differ from call to call: some tell blocks apart, some are times. None of them decides anything, so they
are left out on the way to the world, and put back on the way to the process that stored them.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import dualwrite
from dualwrite.recipes.sql.redo_statements import INSERT_HEAD, REDO_TABLE, RedoTable
from tests.proof.automaton import ask

Value = str | int | bytes | None

RedoRows = tuple[tuple[Value, ...], ...]
"""The rows of the table."""

_SCHEMA: Final = (Path(dualwrite.__file__).parent / "recipes" / "sql" / "redo_schema.sql").read_text(encoding="utf-8")
_TOKEN: Final = slice(1, 9)
"""The bytes of `record_block.py` that differ between any two blocks."""

_CHECKSUM_BYTES: Final = 4
_SOME_TIME_MS: Final = 1
_TIMES: Final = ("now", "since")
_BYTES_OF_A_LARGE_BLOCK: Final = 5_000_000
"""Two of these are more than one transaction publishes."""

_SIZE: Final = "length(records)"


class OnRedo(NamedTuple):
    """Execute a statement on the table of stored blocks, in transaction `number` of this process."""

    number: int
    sql: str
    values: tuple[tuple[str, Value], ...]

    @property
    def transactional_id(self) -> Value:
        """The id that it is about, as each statement is."""
        return dict(self.values)["id"]


Asking = Callable[[OnRedo], Awaitable[Any]]
"""Yields a request to the world."""


class DatabaseGone(Exception):  # noqa: N818 - as drivers name it
    """The connection is lost, and with it the transaction, unless it was being committed."""


# ---- the world's side -----------------------------------------------------------------------------------------------


@cache
def _engine() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(_SCHEMA)
    return connection


@cache
def executed(rows: RedoRows, sql: str, values: tuple[tuple[str, Value], ...]) -> tuple[Any, RedoRows]:
    """Execute a statement. Return its result, the rows found or how many were changed, and the rows after it."""
    engine = _engine()
    engine.execute(f"DELETE FROM {REDO_TABLE}")
    for row in rows:
        engine.execute(f"INSERT INTO {REDO_TABLE} VALUES ({', '.join('?' * len(row))})", row)
    cursor = engine.execute(sql, dict(values))
    result: Any = tuple(cursor.fetchall()) if cursor.description else cursor.rowcount
    return result, tuple(engine.execute(f"SELECT * FROM {REDO_TABLE} ORDER BY seq"))


def with_head(*transactional_ids: str) -> RedoRows:
    """Return the table with the rows that are made ahead of time, one per id."""
    heads = [executed((), INSERT_HEAD, (("id", each),))[1] for each in sorted(transactional_ids)]
    return tuple(row for head in heads for row in head)


def of_id(rows: RedoRows, transactional_id: Value) -> RedoRows:
    """Return the rows of one id."""
    return tuple(row for row in rows if row[0] == transactional_id)


def with_changed(rows: RedoRows, changed: RedoRows) -> RedoRows:
    """Return the table with these rows of their ids, each of which has one row that is never deleted."""
    ids = {row[0] for row in changed}
    kept = tuple(row for row in rows if row[0] not in ids)
    return tuple(sorted((*kept, *changed), key=lambda row: (str(row[0]), str(row[1]).rjust(20))))


def blocks_in(rows: RedoRows) -> frozenset[Value]:
    """Return the stored blocks, as bytes."""
    return frozenset(row[-1] for row in rows if isinstance(row[1], int) and row[1] > 0)


# ---- the process's side ---------------------------------------------------------------------------------------------


class _CheckedStatements:
    """`Statements` that go to the world."""

    def __init__(self, number: int, contents: dict[bytes, bytes], asking: Asking, *, are_large: bool) -> None:
        self._number = number
        self._asking = asking
        self._contents = contents
        self._are_large = are_large

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        if self._are_large:
            sql = sql.replace(_SIZE, str(_BYTES_OF_A_LARGE_BLOCK))
        found = await self._ask(sql, values)
        return [[self._contents.get(value, value) for value in row] for row in found]

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        count = await self._ask(sql, values)
        assert isinstance(count, int)
        return count

    async def has_redo_table(self) -> bool:
        return True

    async def _ask(self, sql: str, values: Mapping[str, Any]) -> Any:
        said = tuple((name, self._told_to_the_world(name, value)) for name, value in values.items())
        reply = await self._asking(OnRedo(self._number, sql, said))
        if reply is None:
            raise DatabaseGone(sql)
        return reply

    def _told_to_the_world(self, name: str, value: Value) -> Value:
        if name in _TIMES:
            return _SOME_TIME_MS if value else 0
        if not isinstance(value, bytes):
            return value
        plain = without_token(value)
        self._contents[plain] = value
        return plain


def without_token(content: bytes) -> bytes:
    """Return a block of records without the bytes that tell it from others."""
    body = bytearray(content[:-_CHECKSUM_BYTES])
    body[_TOKEN] = bytes(len(body[_TOKEN]))
    return bytes(body) + zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big")


def checked_redo_table(
    number: int, contents: dict[bytes, bytes], *, are_large: bool, asking: Asking = ask
) -> RedoTable:
    """Return the real `StoredBlocks` of a database transaction of this process, on the world's table.

    `contents` belongs to the process: its stored bytes, by the world's form of them. `are_large`: no two blocks are
    published by one transaction.
    """
    return RedoTable(_CheckedStatements(number, contents, asking, are_large=are_large), lock_clause="")
