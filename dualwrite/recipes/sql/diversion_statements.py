"""The diversion of a pool as one row of the table `kafka_transaction_outbox`, as SQL that a backend executes.

The row has the name of the outbox without its number, the number 0, and the time of the diversion in `stored_at_ms`: 0
while blocks go to Kafka themselves. Nothing is published from it. It is created ahead of time, and changes twice in an
outage: by the commit of the first block whose records the database keeps, and after the last of them was published.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from dualwrite.errors import StateRowError
from dualwrite.recipes.sql.outbox_statements import OUTBOX_TABLE, OutboxStatements

_OF_ROW: Final = "transactional_id = :id AND seq = 0"
_NOW: Final = "CASE stored_at_ms WHEN 0 THEN 'off' ELSE 'on' END"
_SELECT: Final = f"SELECT stored_at_ms FROM {OUTBOX_TABLE} WHERE {_OF_ROW}"
_BEGIN: Final = f"UPDATE {OUTBOX_TABLE} SET stored_at_ms = :now WHERE {_OF_ROW} AND stored_at_ms = 0"
_END: Final = f"UPDATE {OUTBOX_TABLE} SET stored_at_ms = 0 WHERE {_OF_ROW}"
_UNNUMBERED: Final = -(2**63) + 1
"""The number of a row that is to become number 0, for which MySQL would choose another."""


class DiversionDialect(NamedTuple):
    """The statements that differ between databases."""

    select_now: str
    """Selects a text: `on`, `off`, or `unknown` if the transaction may see an old row; empty if it cannot tell."""
    hold: str
    """Selects the time, and keeps others from changing it until the end of the transaction."""
    lock: str
    """Selects the time, and keeps others from holding it too."""
    touch: str = ""
    """Executed before these two, where a SELECT cannot lock."""
    insert: tuple[str, ...] = (f"INSERT INTO {OUTBOX_TABLE} (transactional_id, seq, stored_at_ms) VALUES (:id, 0, 0)",)
    """Insert the row."""


DIALECTS: Final[Mapping[str, DiversionDialect]] = {
    "postgresql": DiversionDialect(
        "SELECT CASE WHEN current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')"
        f" THEN {_NOW} ELSE 'unknown' END FROM {OUTBOX_TABLE} WHERE {_OF_ROW}",
        f"{_SELECT} FOR SHARE",
        f"{_SELECT} FOR UPDATE",
    ),
    "mysql": DiversionDialect(
        "",
        f"{_SELECT} LOCK IN SHARE MODE",
        f"{_SELECT} FOR UPDATE",
        insert=(
            f"INSERT INTO {OUTBOX_TABLE} (transactional_id, seq, stored_at_ms) VALUES (:id, {_UNNUMBERED}, 0)",
            f"UPDATE {OUTBOX_TABLE} SET seq = 0 WHERE transactional_id = :id AND seq = {_UNNUMBERED}",
        ),
    ),
    "sqlite": DiversionDialect(
        f"SELECT {_NOW} FROM {OUTBOX_TABLE} WHERE {_OF_ROW}",
        _SELECT,
        _SELECT,
        touch=f"UPDATE {OUTBOX_TABLE} SET stored_at_ms = stored_at_ms WHERE {_OF_ROW}",
    ),
}
"""By the name of the database. SQLite has one lock for the whole file."""


_NOW_IS: Final[Mapping[str | None, bool]] = {"on": True, "off": False}


class DiversionRow:
    """`Diversion` in the table, inside one transaction."""

    def __init__(
        self,
        statements: OutboxStatements,
        dialect: DiversionDialect,
        name: str,
        *,
        first_row: Callable[[str, str], Awaitable[Sequence[str | None] | None]] | None = None,
    ) -> None:
        """`first_row` executes a statement on the row with this name in a faster way, or returns None."""
        self._first_row = first_row
        self._statements = statements
        self._dialect = dialect
        self._values: Final = {"id": name}

    async def create(self) -> None:
        """Insert the row unless it exists."""
        if not await self._statements.rows(_SELECT, self._values):
            for statement in self._dialect.insert:
                await self._statements.changed(statement, self._values)

    async def is_on_now(self) -> bool | None:
        if not self._dialect.select_now:
            return None
        sql = self._dialect.select_now
        row = None if self._first_row is None else await self._first_row(sql, self._values["id"])
        if row is None:
            found = await self._statements.rows(sql, self._values)
            if not found:
                raise self._missing()
            row = found[0]
        return _NOW_IS.get(row[0])

    async def is_on(self) -> bool:
        return await self._is_on(_SELECT)

    async def begin(self, now_ms: int) -> bool:
        return await self._statements.changed(_BEGIN, {**self._values, "now": now_ms}) == 1

    async def hold(self) -> bool:
        return await self._is_on_locked(self._dialect.hold)

    async def lock(self) -> bool:
        return await self._is_on_locked(self._dialect.lock)

    async def end(self) -> None:
        await self._statements.changed(_END, self._values)

    async def _is_on_locked(self, sql: str) -> bool:
        if self._dialect.touch:
            await self._statements.changed(self._dialect.touch, self._values)
        return await self._is_on(sql)

    async def _is_on(self, sql: str) -> bool:
        found = await self._statements.rows(sql, self._values)
        if not found:
            raise self._missing()
        return bool(found[0][0])

    def _missing(self) -> StateRowError:
        name = self._values["id"]
        return StateRowError(
            f"{OUTBOX_TABLE} has no row with seq 0 for {name!r}, which says whether blocks of the pool go to its "
            "outbox; neither side was changed: the row was deleted after this pool had created it. Start the processes "
            "of the pool again, which create it"
        )
