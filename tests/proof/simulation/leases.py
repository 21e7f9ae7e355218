"""The leases of a pool, in the simulated database: each call is a transaction of its own, by the database's clock."""

from __future__ import annotations

from typing import Any, Final

from dualwrite.recipes.core.leases import Lease
from tests.proof.simulation.database import DatabaseGoneError, SimulatedDatabase


class LeaseTable:
    """The table. `owner` None: the slot is free."""

    def __init__(self) -> None:
        self._leases: dict[int, tuple[str | None, float]] = {}

    def carry_out(self, now_s: float, kind: str, *given: Any) -> Any:
        """Carry out one call of an owner."""
        return getattr(self, f"_{kind}")(now_s, *given)

    def ends_s(self) -> float:
        """Return the end of the last held lease, by the database's clock."""
        return max((expires_s for owner, expires_s in self._leases.values() if owner is not None), default=0.0)

    def _every(self, now_s: float) -> list[Lease]:
        return [
            Lease(slot, owner is None, owner is not None and expires_s <= now_s)
            for slot, (owner, expires_s) in sorted(self._leases.items())
        ]

    def _add(self, now_s: float, owner: str, slot: int, lease_s: float) -> bool:
        if slot in self._leases:
            return False
        self._leases[slot] = owner, now_s + lease_s
        return True

    def _claim(self, now_s: float, owner: str, lease: Lease, lease_s: float) -> bool:
        holder, expires_s = self._leases[lease.slot]
        if (holder is None) if lease.free else (holder is not None and expires_s <= now_s):
            self._leases[lease.slot] = owner, now_s + lease_s
            return True
        return False

    def _renew(self, now_s: float, owner: str, slots: set[int], lease_s: float) -> set[int]:
        held = {slot for slot in slots if self._has(now_s, owner, slot)}
        for slot in held:
            self._leases[slot] = owner, now_s + lease_s
        return held

    def _has(self, now_s: float, owner: str, slot: int) -> bool:
        return slot in self._leases and self._leases[slot][0] == owner

    def _release(self, now_s: float, owner: str, slot: int) -> None:
        if self._has(now_s, owner, slot):
            self._leases[slot] = None, now_s

    def _abandon(self, now_s: float, owner: str, slot: int) -> None:
        if self._has(now_s, owner, slot):
            self._leases[slot] = owner, now_s


class SimulatedLeases:
    """`Leases` of one owner."""

    def __init__(self, database: SimulatedDatabase, owner: str, lease_ms: int, *, table: str = "lease") -> None:
        self.errors: Final[tuple[type[Exception], ...]] = (DatabaseGoneError,)
        self._database = database
        self._owner = owner
        self._table = table
        self._lease_s = lease_ms / 1000

    async def every_lease(self) -> list[Lease]:
        found: list[Lease] = await self._database.lease(self._table, "every")
        return found

    async def add(self, slot: int) -> bool:
        return bool(await self._database.lease(self._table, "add", self._owner, slot, self._lease_s))

    async def claim(self, lease: Lease) -> bool:
        return bool(await self._database.lease(self._table, "claim", self._owner, lease, self._lease_s))

    async def renew(self, slots: set[int]) -> set[int]:
        held: set[int] = await self._database.lease(self._table, "renew", self._owner, set(slots), self._lease_s)
        return held

    async def has(self, slot: int, block: object) -> bool:
        return bool(await self._database.lease(self._table, "has", self._owner, slot))

    async def release(self, slot: int) -> None:
        await self._database.lease(self._table, "release", self._owner, slot)

    async def abandon(self, slot: int) -> None:
        await self._database.lease(self._table, "abandon", self._owner, slot)

    async def adopt(self) -> None:
        """Do nothing: the table is never emptied."""
