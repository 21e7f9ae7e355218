"""Leases of transactional ids in the table `kafka_transaction_lease`, as SQL that a backend executes.

A lease is taken by an UPDATE that names the lease it replaces. Such an UPDATE works the same on every database and
at every isolation level, leaves a row that operators can read, and outlives the connection that made it. Advisory locks
(PostgreSQL only, and one connection held per pool) and SKIP LOCKED (not in SQLite, and a transaction left open for as
long as a lease lasts) would notice a dead process sooner, but no guarantee depends on that.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from dualwrite.recipes.core.database_errors import is_conflict
from dualwrite.recipes.core.leases import Lease, slot_of
from dualwrite.recipes.sql.pinned_tables import STATE_TABLE, OnTables, Pin

ResultT = TypeVar("ResultT")

LEASE_TABLE: Final = "kafka_transaction_lease"

POSTGRES_NOW_MS: Final = "CAST(date_part('epoch', clock_timestamp()) * 1000 AS bigint)"
"""Milliseconds since 1970 by PostgreSQL's clock."""

NOW_MS: Final = {
    "postgresql": POSTGRES_NOW_MS,
    # UNIX_TIMESTAMP(NOW()) is ambiguous in the hour that is repeated when daylight saving time ends
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)",
    "mariadb": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}
"""The same by the clock of each dialect."""

SELECT_HELD: Final = f"SELECT prefix, slot FROM {LEASE_TABLE} WHERE owner IS NOT NULL AND expires_at_ms >= "
"""Selects the leases of living processes, with the time behind it."""

_OF_PREFIX: Final = "prefix = :prefix"
_OF_SLOT: Final = f"{_OF_PREFIX} AND slot = :slot"
_OURS: Final = "owner = :owner"
_STATE_IDS: Final = f"SELECT transactional_id FROM {STATE_TABLE} WHERE transactional_id LIKE :pattern ESCAPE '/'"
_KNOWN: Final = f"SELECT slot FROM {LEASE_TABLE} WHERE {_OF_PREFIX}"
_ADOPT: Final = f"INSERT INTO {LEASE_TABLE} (prefix, slot, owner, expires_at_ms) VALUES (:prefix, :slot, '', 0)"
_HELD: Final = f"SELECT slot FROM {LEASE_TABLE} WHERE {_OF_SLOT} AND {_OURS}"
_RELEASE: Final = f"UPDATE {LEASE_TABLE} SET owner = NULL, expires_at_ms = 0 WHERE {_OF_SLOT} AND {_OURS}"
_ABANDON: Final = f"UPDATE {LEASE_TABLE} SET expires_at_ms = 0 WHERE {_OF_SLOT} AND {_OURS}"


Steps = Callable[[OnTables], Coroutine[Any, Any, ResultT]]


class TableLeases:
    """`Leases` in a table of a `SqlDatabase`, whose clock is the only one that all processes share."""

    def __init__(self, database: Any, *, prefix: str, owner: str, lease_ms: int) -> None:
        self._database = database
        self._pin = Pin()
        now_ms = database.now_ms
        self._prefix = prefix
        self._mine: Final = {"prefix": prefix, "owner": owner}
        self._new: Final = {**self._mine, "lease_ms": lease_ms}
        expired = f"owner IS NOT NULL AND expires_at_ms < {now_ms}"
        lease = f"owner = :owner, expires_at_ms = {now_ms} + :lease_ms"
        self._every = f"SELECT slot, owner IS NULL, {expired} FROM {LEASE_TABLE} WHERE {_OF_PREFIX} ORDER BY slot"
        self._add = (
            f"INSERT INTO {LEASE_TABLE} (prefix, slot, owner, expires_at_ms)"
            f" VALUES (:prefix, :slot, :owner, {now_ms} + :lease_ms)"
        )
        self._claim_free = f"UPDATE {LEASE_TABLE} SET {lease} WHERE {_OF_SLOT} AND owner IS NULL"
        self._claim_expired = f"UPDATE {LEASE_TABLE} SET {lease} WHERE {_OF_SLOT} AND {expired}"
        self._renew = f"UPDATE {LEASE_TABLE} SET expires_at_ms = {now_ms} + :lease_ms WHERE {_OF_PREFIX} AND {_OURS}"

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        errors: tuple[type[Exception], ...] = self._database.errors
        return errors

    async def _in_transaction(self, steps: Steps[ResultT]) -> ResultT:
        """Run `steps` in a separate transaction, on a database that has the table."""
        if self._pin.tables is None:
            self._pin.tables = await self._database.ensure_table(LEASE_TABLE)
        result: ResultT = await self._database.in_transaction(steps, self._pin)
        return result

    async def every_lease(self) -> list[Lease]:
        async def steps(transaction: OnTables) -> list[Lease]:
            found = await transaction.rows(self._every, {"prefix": self._prefix})
            return [Lease(slot, bool(free), bool(expired)) for slot, free, expired in found]

        return await self._in_transaction(steps)

    async def add(self, slot: int) -> bool:
        return await self._won(self._add, slot)

    async def claim(self, lease: Lease) -> bool:
        return await self._won(self._claim_free if lease.free else self._claim_expired, lease.slot)

    async def _won(self, sql: str, slot: int) -> bool:
        async def steps(transaction: OnTables) -> bool:
            return await transaction.changed(sql, {**self._new, "slot": slot}) == 1

        return await self._unless_beaten(steps)

    async def renew(self, slots: set[int]) -> set[int]:
        if not slots:
            return set()
        these = f"slot IN ({', '.join(map(str, sorted(slots)))})"

        async def steps(transaction: OnTables) -> set[int]:
            await transaction.changed(f"{self._renew} AND {these}", self._new)
            held = f"SELECT slot FROM {LEASE_TABLE} WHERE {_OF_PREFIX} AND {_OURS} AND {these}"
            return {slot for (slot,) in await transaction.rows(held, self._mine)}

        return await self._in_transaction(steps)

    async def has(self, slot: int, block: Any) -> bool:
        if self._database.locks_whole:  # by the block
            return await self._is_ours(block, slot)
        return await self._in_transaction(lambda transaction: self._is_ours(transaction, slot))

    async def _is_ours(self, transaction: OnTables, slot: int) -> bool:
        return bool(await transaction.rows(_HELD, {**self._mine, "slot": slot}))

    async def release(self, slot: int) -> None:
        await self._end(_RELEASE, slot)

    async def abandon(self, slot: int) -> None:
        await self._end(_ABANDON, slot)

    async def _end(self, sql: str, slot: int) -> None:
        await self._in_transaction(lambda transaction: transaction.changed(sql, {**self._mine, "slot": slot}))

    async def adopt(self) -> None:
        await self._unless_beaten(self._adopt)

    async def _adopt(self, transaction: OnTables) -> bool:
        if not await transaction.has_table(STATE_TABLE):
            return False
        ids = await transaction.rows(_STATE_IDS, {"pattern": f"{_escaped(self._prefix)}-%"})
        known = {slot for (slot,) in await transaction.rows(_KNOWN, {"prefix": self._prefix})}
        found = {slot_of(self._prefix, transactional_id) for (transactional_id,) in ids}
        for slot in sorted(slot for slot in found if slot is not None and slot not in known):
            await transaction.changed(_ADOPT, {"prefix": self._prefix, "slot": slot})
        return True

    async def _unless_beaten(self, steps: Steps[bool]) -> bool:
        """Return whether `steps` took effect; they do not if another process was faster."""
        try:
            return await self._in_transaction(steps)
        except Exception as error:
            # the only conflict of a database with one lock is that it was not free in time
            is_beaten = self._database.was_inserted_by_others(error) or (
                not self._database.locks_whole and is_conflict(error)
            )
            if not is_beaten:
                raise
            return False


def _escaped(text: str) -> str:
    return text.replace("/", "//").replace("%", "/%").replace("_", "/_")
