"""The diversion of a pool as one row of the table `kafka_transaction_outbox`, as SQL that a backend executes.

The row has the name of the outbox without its number, the number 0, and the time of the diversion in `stored_at_ms`: 0
while blocks go to Kafka themselves. Nothing is published from it. It is created ahead of time, and changes twice in an
outage: by the commit of the first block whose records the database keeps, and after the last of them was published.

A second row, with the number -1, has the number under which the publisher asks blocks to wait for the end. No block
locks it, so it can be changed while they hold the first one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from dualwrite.errors import StateRowError
from dualwrite.recipes.core.store import Way, stayed_locked
from dualwrite.recipes.sql.pinned_tables import OUTBOX_TABLE

_OF_ROW: Final = "transactional_id = :id AND seq = 0"
_WAY: Final = (
    f"CASE stored_at_ms WHEN 0 THEN 0 ELSE coalesce((SELECT -asked.stored_at_ms FROM {OUTBOX_TABLE} AS asked"
    " WHERE asked.transactional_id = :id AND asked.seq = -1 AND asked.stored_at_ms > 0), stored_at_ms) END"
)
"""0 while blocks go to Kafka, positive while they go to the outbox, and negative if they are asked to wait."""
_SELECT_WAY: Final = f"SELECT {_WAY} FROM {OUTBOX_TABLE} WHERE {_OF_ROW}"
_OF_ASKED: Final = "transactional_id = :id AND seq = -1"
_SELECT_ASKED: Final = f"SELECT stored_at_ms FROM {OUTBOX_TABLE} WHERE {_OF_ASKED}"
_ASK: Final = f"UPDATE {OUTBOX_TABLE} SET stored_at_ms = :now WHERE {_OF_ASKED}"
_SELECT: Final = f"SELECT stored_at_ms FROM {OUTBOX_TABLE} WHERE {_OF_ROW}"
_BEGIN: Final = f"UPDATE {OUTBOX_TABLE} SET stored_at_ms = :now WHERE {_OF_ROW} AND stored_at_ms = 0"
_END: Final = f"UPDATE {OUTBOX_TABLE} SET stored_at_ms = 0 WHERE transactional_id = :id AND seq IN (0, -1)"
_INSERT_ASKED: Final = f"INSERT INTO {OUTBOX_TABLE} (transactional_id, seq, stored_at_ms) VALUES (:id, -1, 0)"
UNNUMBERED: Final = -(2**63) + 1
"""The number of a row that is to become number 0, for which MySQL would choose another."""


class DiversionDialect(NamedTuple):
    """The statements that differ between databases."""

    select_now: str
    """Selects the way as a text, or `unknown` if the transaction may see an old row; empty if it cannot tell."""
    hold: str
    """Selects the time, and keeps others from changing it until the end of the transaction.

    Several transactions that find 0, and so have to change it, hold each other up: a deadlock, after which the blocks
    that the database rolls back may be repeated.
    """
    lock: str
    """Selects the time, and keeps others from holding it too."""
    touch: str = ""
    """Executed before these two, where a SELECT cannot lock."""
    insert: tuple[str, ...] = (f"INSERT INTO {OUTBOX_TABLE} (transactional_id, seq, stored_at_ms) VALUES (:id, 0, 0)",)
    """Insert the row."""
    may_wait: bool = True
    """Whether the publisher can go on while blocks wait that have changed rows."""
    may_skip: bool = False
    """Whether `hold` finds nothing, and does not wait, if the time is 0 or another transaction keeps the row locked."""


DIALECTS: Final[Mapping[str, DiversionDialect]] = {
    "postgresql": DiversionDialect(
        "SELECT CASE WHEN current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')"
        f" THEN CAST({_WAY} AS text) ELSE 'unknown' END FROM {OUTBOX_TABLE} WHERE {_OF_ROW}",
        f"{_SELECT} AND stored_at_ms <> 0 FOR SHARE SKIP LOCKED",
        f"{_SELECT} FOR UPDATE",
        may_skip=True,
    ),
    "mysql": DiversionDialect(
        "",
        f"{_SELECT} LOCK IN SHARE MODE",
        f"{_SELECT} FOR UPDATE",
        insert=(
            f"INSERT INTO {OUTBOX_TABLE} (transactional_id, seq, stored_at_ms) VALUES (:id, {UNNUMBERED}, 0)",
            f"UPDATE {OUTBOX_TABLE} SET seq = 0 WHERE transactional_id = :id AND seq = {UNNUMBERED}",
        ),
    ),
    "sqlite": DiversionDialect(
        f"SELECT CAST({_WAY} AS text) FROM {OUTBOX_TABLE} WHERE {_OF_ROW}",
        _SELECT,
        _SELECT,
        touch=f"UPDATE {OUTBOX_TABLE} SET stored_at_ms = stored_at_ms WHERE {_OF_ROW}",
        may_wait=False,
    ),
}
"""By the name of the database. SQLite has one lock for the whole file."""


class DiversionRow:
    """`Diversion` in the table, inside one transaction."""

    def __init__(self, statements: Any, dialect: DiversionDialect, name: str, timeout_ms: int | None) -> None:
        """`statements` are `OnTables`, with `within`, which limits the waits for locks."""
        self._statements = statements
        self._dialect = dialect
        self._timeout_ms = timeout_ms
        self._values: Final = {"id": name}

    async def create(self) -> None:
        for select, insert in ((_SELECT, self._dialect.insert), (_SELECT_ASKED, (_INSERT_ASKED,))):
            if not await self._statements.rows(select, self._values):
                for statement in insert:
                    await self._statements.changed(statement, self._values)

    async def way_now(self) -> Way | None:
        if not self._dialect.select_now:
            return None
        row = await self._statements.first_row(self._dialect.select_now, self._values)
        if row is None:
            raise self._missing()
        return None if row[0] is None or row[0] == "unknown" else _way(int(row[0]))

    async def way(self) -> Way:
        return _way(await self._time(_SELECT_WAY))

    async def begin(self, now_ms: int) -> bool:
        return await self._change(_BEGIN, now=now_ms) == 1

    async def hold(self) -> bool:
        if not self._dialect.may_skip:
            return await self._is_on_locked(self._dialect.hold)
        if await self._statements.rows(self._dialect.hold, self._values):
            return True
        # it has ended, or is beginning or ending: only a block that is alone with the row can begin it
        return await self._is_on_locked(self._dialect.lock)

    async def lock(self) -> bool:
        return await self._is_on_locked(self._dialect.lock)

    async def ask(self, number: int) -> None:
        if self._dialect.may_wait:
            await self._change(_ASK, now=number)

    async def end(self) -> None:
        await self._change(_END)

    async def _is_on_locked(self, sql: str) -> bool:
        if self._dialect.touch:
            await self._change(self._dialect.touch)
        return bool(await self._in_time(lambda: self._time(sql)))

    async def _change(self, sql: str, **values: int) -> int:
        changed: int = await self._in_time(lambda: self._statements.changed(sql, {**self._values, **values}))
        return changed

    async def _in_time(self, wait: Callable[[], Awaitable[Any]]) -> Any:
        late = stayed_locked(self._values["id"], self._timeout_ms, f"row in {OUTBOX_TABLE} that diverts the pool of")
        return await self._statements.within(self._timeout_ms, late, wait)

    async def _time(self, sql: str) -> int:
        found = await self._statements.rows(sql, self._values)
        if not found:
            raise self._missing()
        return int(found[0][0])

    def _missing(self) -> StateRowError:
        name = self._values["id"]
        return StateRowError(
            f"{OUTBOX_TABLE} has no row with seq 0 for {name!r}, which says whether blocks of the pool go to its "
            "outbox; neither side was changed: the row was deleted after this pool had created it. Start the processes "
            "of the pool again, which create it"
        )


def _way(number: int) -> Way:
    return Way(number != 0, max(-number, 0))
