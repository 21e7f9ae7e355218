"""The table of an outbox as a value: the product's own SQL on it, by a real PostgreSQL, and remembered.

Blocks add rows without a lock of ours, so a transaction keeps its changes of the table to itself until it commits. The
numbers of blocks are given to no other block, even if their transactions are rolled back. The database's clock stands
still, except for hours without any event.

A block of a transaction is told from others by its number. The bytes that would differ from call to call are left out
on the way to the world, and put back on the way to the process that stored them.
"""

from __future__ import annotations

import atexit
import logging
import sqlite3
import uuid
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

import dualwrite
from dualwrite.errors import RowLockTimeoutError
from dualwrite.recipes.core.leases import outbox_prefix_of
from dualwrite.recipes.core.record_block import token_of
from dualwrite.recipes.sql.lease_statements import NOW_MS, POSTGRES_NOW_MS
from dualwrite.recipes.sql.outbox_elsewhere import OF_SQLITE, OutboxInSteps
from dualwrite.recipes.sql.outbox_statements import _PUBLISH, _PUBLISH_AND_FORGET, ADD, OF_POSTGRES, PostgresOutbox
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE, OutboxTable
from dualwrite.recipes.sql.pinned_tables import OnTables, Pin
from dualwrite.recipes.sql.postgres import BY_INDEX
from dualwrite.recipes.sqlalchemy.outbox_table import kafka_transaction_outbox
from dualwrite.testing.postgres import PostgresServer
from tests.proof.automaton import DatabaseGone, ask
from tests.proof.lease_model import PREFIX
from tests.proof.owner import GAVE_UP

ResultT = TypeVar("ResultT")

Value = str | int | bytes | None

OutboxRow = tuple[str, int, int, bytes | None, tuple[int, ...] | str | None, int | None, str | None]
"""Transactional id, number, when it was added, records, published blocks, the last number whose note is deleted, and
the transaction that published the last batch."""

_SCHEMA: Final = Path(dualwrite.__file__).parent / "recipes" / "sql" / "outbox_schema.sql"
_BEGUN_MS: Final = 1_000_000_000
_COLUMNS: Final = "transactional_id, seq, stored_at_ms, records"
HOUR_MS: Final = 3_600_000
_SIZE: Final = "octet_length(records)"
_BYTES_OF_A_LARGE_BLOCK: Final = 5_000_000
"""Two of these are more than one transaction publishes."""


_TOKEN: Final = slice(1, 9)
"""The bytes of `record_block.py` that differ between any two blocks."""

_CHECKSUM_BYTES: Final = 4

_OF_PUBLISHER: Final = (
    *(OF_SQLITE.last_batch, OF_SQLITE.last_tokens, OF_SQLITE.delete, OF_SQLITE.note, OF_SQLITE.old_notes),
    *(OF_SQLITE.update_head, OF_SQLITE.insert_head, OF_SQLITE.number_head),
)
"""The statements of a batch in steps, about rows that only the owner of the row's lock changes."""


Key = tuple[str, int]
"""Transactional id and number of a row."""

DIVERSION: Final[Key] = outbox_prefix_of(PREFIX), 0


class OnOutbox(NamedTuple):
    """Execute a statement on the outbox, in transaction `number` of this process; None: in one of its own."""

    number: int | None
    sql: str
    values: tuple[tuple[str, Value], ...]
    in_steps: bool = False
    """Whether it is one of `outbox_elsewhere.py`, which publishes in several statements."""

    @property
    def adds(self) -> bool:
        """Whether it adds a block."""
        return self.sql in (ADD, OF_SQLITE.add)

    @property
    def is_of_diversion(self) -> bool:
        """Whether it is about the diversion of a pool, with locks of rows."""
        return dict(self.values).get("id") == DIVERSION[0]

    @property
    def skips_locked(self) -> bool:
        """Whether it shares the row of the diversion, or finds none if another transaction has locked it alone."""
        return self.sql.endswith("FOR SHARE SKIP LOCKED")

    @property
    def is_of_publisher(self) -> bool:
        """Whether it is about the last batch, which only concerns the owner of the row's lock."""
        return self.sql in (_PUBLISH_AND_FORGET, OF_POSTGRES.last_batch) or self.sql in _OF_PUBLISHER


class AddAgain(NamedTuple):
    """Insert the key of a block once more, in transaction `number`: is a transaction in progress that has added it?"""

    number: int
    seq: int


class Touch(NamedTuple):
    """Change the row of the application that all blocks change, in transaction `number` of this process."""

    number: int


class Changes(NamedTuple):
    """A transaction's changes of the table."""

    added: tuple[OutboxRow, ...] = ()
    removed: tuple[Key, ...] = ()
    holds: int = 0
    """How it has locked the row of the diversion: 1 with others, 2 alone."""


NO_CHANGES: Final = Changes()


class Outbox(NamedTuple):
    """The committed rows, and the server's state beside transactions."""

    rows: tuple[OutboxRow, ...] = ()
    next_seq: int = 1
    logged_seq: int = 1
    """The same as the server's log has it behind the last commit: where a standby goes on."""
    passed_ms: int = 0
    """How much time has passed."""
    earlier: tuple[tuple[bytes, frozenset[bytes]], ...] = ()
    """For each added block, the blocks that were committed then, and so come before it."""


EMPTY: Final = Outbox()

# ---- the world's side -----------------------------------------------------------------------------------------------


def committed(outbox: Outbox, changes: Changes) -> Outbox:
    """Return the table after a transaction has committed its changes."""
    rows = outbox.rows if changes == NO_CHANGES else _seen(outbox.rows, changes)
    return outbox if outbox == EMPTY else outbox._replace(rows=rows, logged_seq=outbox.next_seq)


def gone_back(outbox: Outbox, state: Outbox) -> Outbox:
    """Return the table of a standby that takes over; it may give numbers a second time."""
    return outbox._replace(
        rows=state.rows, next_seq=state.logged_seq, logged_seq=state.logged_seq, passed_ms=outbox.passed_ms + 1
    )


def diversion(*, is_on: bool) -> tuple[OutboxRow, ...]:
    """Return the rows that `prepare_diversion` inserts, perhaps after a block has begun the diversion."""
    return tuple((DIVERSION[0], number, int(is_on and not number), None, None, None, None) for number in (-1, 0))


def conflict(changes: Changes, others: Changes) -> bool:
    """Return whether one of two transactions has to wait for the other, because of a row that both need."""
    mine, theirs = (set(each.removed) for each in (changes, others))
    is_locked = {DIVERSION} & mine or changes.holds
    are_two = is_locked and ({DIVERSION} & theirs or others.holds)
    both_share = changes.holds == others.holds == 1 and DIVERSION not in mine | theirs
    return bool(mine & theirs or (are_two and not both_share))


def has_added(changes: Changes, seq: int) -> bool:
    """Return whether a transaction has added the block with a number."""
    return any(row[1] == seq for row in changes.added)


def executed(outbox: Outbox, changes: Changes, request: OnOutbox) -> tuple[Any, Outbox, Changes]:
    """Execute a statement of a transaction. Return its result, the outbox, and the changes of the transaction.

    The result is None if the server refuses the statement.
    """
    before = _seen(outbox.rows, changes)
    on_engine = _in_steps if request.in_steps else _on_engine
    result, after = on_engine(before, outbox.next_seq, outbox.passed_ms, request.sql, request.values)
    if result is None:
        return None, outbox, changes
    if request.adds:
        outbox = outbox._replace(next_seq=outbox.next_seq + 1)
        result = result if request.in_steps else ((_without_place(result[0][0]),),)
    kept = set(after)
    holds = 2 if request.sql.endswith("FOR UPDATE") else request.skips_locked and bool(result)
    removed = tuple(sorted({row[:2] for row in outbox.rows if row not in kept}))
    added = tuple(row for row in after if row not in set(outbox.rows))
    return result, outbox, Changes(added, removed, max(holds, changes.holds))


def _seen(rows: tuple[OutboxRow, ...], changes: Changes) -> tuple[OutboxRow, ...]:
    kept = (row for row in rows if row[:2] not in changes.removed)
    return tuple(sorted((*kept, *changes.added), key=lambda row: (row[1], row[0])))


def _without_place(text: str) -> str:
    """Return the result of `ADD`, without the place, which differs from run to run."""
    seq, stored_at_ms, waits, _ = text.split(" ", 3)
    return f"{seq} {stored_at_ms} {waits} here"


@cache
def _engine() -> psycopg.Cursor[Any]:
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    server = PostgresServer.start()
    atexit.register(server.stop)
    server.spare_the_disk()
    url = server.create_database(f"outbox_{uuid.uuid4().hex[:12]}")
    connection = psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False))
    atexit.register(connection.close)
    connection.execute(_SCHEMA.read_text(encoding="utf-8"))
    connection.commit()
    logging.disable(disabled)
    return psycopg.ClientCursor(connection)


@cache
def _on_engine(
    rows: tuple[OutboxRow, ...], next_seq: int, passed_ms: int, sql: str, values: tuple[tuple[str, Value], ...]
) -> tuple[Any, tuple[OutboxRow, ...]]:
    engine = _engine()
    for row in rows:
        published = None if row[4] is None else list(row[4])
        places = ", ".join(["%s"] * len(row))
        engine.execute(f"INSERT INTO {OUTBOX_TABLE} VALUES ({places})", (*row[:4], published, *row[5:]))
    engine.execute(f"ALTER TABLE {OUTBOX_TABLE} ALTER COLUMN seq RESTART WITH {next_seq}")
    now = f"CAST({_BEGUN_MS + passed_ms} AS bigint)"
    given = dict(values)
    sql = sql.replace(POSTGRES_NOW_MS, now)
    for name in sorted(given, key=len, reverse=True):
        sql = sql.replace(f":{name}", f"%({name})s")
    try:
        engine.execute(sql, given)
    except psycopg.Error:
        engine.connection.rollback()
        return None, rows
    result = (
        tuple(tuple(map(_plain, row)) for row in engine.fetchall()) if engine.description else ((engine.rowcount,),)
    )
    engine.execute(f"SELECT * FROM {OUTBOX_TABLE} ORDER BY seq, transactional_id")
    after = tuple(tuple(map(_plain, row)) for row in engine.fetchall())
    engine.connection.rollback()
    return result, after


@cache
def _steps_engine() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute(str(CreateTable(kafka_transaction_outbox).compile(dialect=sqlite.dialect())))
    return connection


@cache
def _in_steps(
    rows: tuple[OutboxRow, ...], next_seq: int, passed_ms: int, sql: str, values: tuple[tuple[str, Value], ...]
) -> tuple[Any, tuple[OutboxRow, ...]]:
    """Do the same as `_on_engine` by SQLite; the server gives numbers, as MySQL's does."""
    engine = _steps_engine()
    engine.executemany(f"INSERT INTO {OUTBOX_TABLE} VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    if sql == OF_SQLITE.add:
        sql = f"INSERT INTO {OUTBOX_TABLE} ({_COLUMNS}) VALUES (:id, {next_seq}, {NOW_MS['sqlite']}, :content)"
    done = engine.execute(sql.replace(NOW_MS["sqlite"], str(_BEGUN_MS + passed_ms)), dict(values))
    found = tuple(done.fetchall())
    result = found if done.description else ((next_seq if ":content" in sql else done.rowcount,),)
    after = tuple(engine.execute(f"SELECT * FROM {OUTBOX_TABLE} ORDER BY seq").fetchall())
    engine.rollback()
    return result, after


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return bytes(value) if isinstance(value, memoryview) else value


# ---- the process's side ---------------------------------------------------------------------------------------------


class _WaitedInVainError(Exception):
    """A lock was not free in time."""


class CheckedStatements(OnTables):
    """Statements that go to the world. `are_large`: no two blocks are published by one transaction."""

    def __init__(
        self, number: int | None, *, are_large: bool = False, give_up: Callable[[], object] = lambda: None
    ) -> None:
        self.pin = Pin()
        self._number = number
        self._are_large = are_large
        self._give_up = give_up

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        if sql == BY_INDEX:
            return ()  # which changes no outcome: a statement that waits follows
        if sql == _PUBLISH:
            sql = _PUBLISH_AND_FORGET  # as one in some batches does, by chance
        if self._are_large:
            sql = sql.replace(_SIZE, str(_BYTES_OF_A_LARGE_BLOCK))
        said = tuple((name, without_token(value) if name == "content" else value) for name, value in values.items())
        reply = await ask(OnOutbox(self._number, sql, said))
        if reply is None:
            raise DatabaseGone(sql)
        if reply == GAVE_UP:
            raise _WaitedInVainError
        found: Sequence[Sequence[Any]] = reply
        return found

    async def within(
        self, timeout_ms: int | None, late: RowLockTimeoutError, wait: Callable[[], Awaitable[ResultT]]
    ) -> ResultT:
        try:
            return await wait()
        except _WaitedInVainError:
            raise late from None

    async def has_ended(self, transactional_id: str, seq: int) -> bool:
        """Return whether no transaction in progress has added a block; `transactional_id` is that of the one outbox."""
        assert self._number is not None, "it has locked the row"
        found = await ask(AddAgain(self._number, seq))
        if found is None:
            raise DatabaseGone(str(seq))
        if found == GAVE_UP:
            self._give_up()
        return not found

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        ((number,),) = await self.rows(sql, values)
        found: int = number
        return found

    async def has_table(self, name: str) -> bool:
        return True


class CheckedSteps(CheckedStatements):
    """The same for the statements of `outbox_elsewhere.py`."""

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        if self._are_large and sql == OF_SQLITE.sizes:
            sql = sql.replace("length(records)", str(_BYTES_OF_A_LARGE_BLOCK))
        said = dict(values)
        if "content" in said:
            said["content"] = _with_stable_token(values["content"])
        if "noted" in said:
            said["noted"] = values["noted"].replace(token_of(values["content"]), token_of(said["content"]))
        reply = await ask(OnOutbox(self._number, sql, tuple(said.items()), in_steps=True))
        if reply is None:
            raise DatabaseGone(sql)
        found: Sequence[Sequence[Any]] = reply
        return found

    async def inserted(self, sql: str, values: Mapping[str, Any]) -> int:
        return await self.changed(sql, values)


def _with_stable_token(content: bytes) -> bytes:
    """Return a block of records with a token that is the same for the same records."""
    body = bytearray(without_token(content)[:-4])
    body[1:9] = zlib.crc32(body).to_bytes(8, "big")
    return bytes(body) + zlib.crc32(body).to_bytes(4, "big")


def outbox_table(statements: CheckedStatements) -> OutboxTable:
    """Return the real `StoredBlocks` of a transaction on the world's table."""
    if isinstance(statements, CheckedSteps):
        return OutboxInSteps(statements, statements.has_ended, OF_SQLITE, forgets=lambda: True)
    return PostgresOutbox(statements, statements.has_ended)


def without_token(content: bytes) -> bytes:
    """Return a block of records without the bytes that tell it from others."""
    body = bytearray(content[:-_CHECKSUM_BYTES])
    body[_TOKEN] = bytes(len(body[_TOKEN]))
    return bytes(body) + zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big")
