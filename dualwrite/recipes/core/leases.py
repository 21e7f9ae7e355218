"""Leases of transactional ids: the interface of the table that divides a pool's ids among its processes.

A lease only saves work. The safety of a dual write depends on its row lock and Kafka's epoch: two processes with the
same lease fence each other, and nothing else happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from dualwrite.errors import ConfigError
from dualwrite.recipes.core.settings import checked_transactional_id
from dualwrite.shown import shown

MAX_SLOTS: Final = 1_000_000
"""Slots of a prefix are numbered from 0 to below this."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of one slot as stored in the database."""

    slot: int
    free: bool
    """No process has the slot, and its last owner left nothing open."""
    expired: bool
    """Its owner has not renewed it in time, and so may have left something open."""


class Leases(Protocol):
    """The leases of one prefix, as one owner uses them. Each call is a separate database transaction."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The types of error raised if the database is unreachable or refuses a statement."""

    async def every_lease(self) -> list[Lease]:
        """Return all slots of the prefix that have ever been leased, lowest first."""

    async def add(self, slot: int) -> bool:
        """Lease a slot that has no lease yet. Return False if another process was faster."""

    async def claim(self, lease: Lease) -> bool:
        """Lease a slot that is free or expired. Return False if that is no longer the case."""

    async def renew(self, slots: set[int]) -> set[int]:
        """Renew the leases of these slots. Return those that this owner still has."""

    async def release(self, slot: int) -> None:
        """Give back a slot that has nothing open. Harmless if this owner does not have it."""

    async def abandon(self, slot: int) -> None:
        """Let a lease expire now, so that its slot is recovered before use. Harmless if it belongs to another owner."""

    async def adopt(self) -> None:
        """Create expired leases for slots that have a state row and no lease, because the table was emptied."""


def transactional_id_of(prefix: str, slot: int) -> str:
    """Return the transactional id of a slot."""
    return f"{prefix}-{slot}"


def slot_of(prefix: str, transactional_id: str) -> int | None:
    """Return the slot of `prefix` that an id is, or None: `orders-eu-0` is not a slot of `orders`."""
    text = transactional_id.removeprefix(f"{prefix}-")
    if text == transactional_id or not (text.isascii() and text.isdecimal() and text == str(int(text))):
        return None
    return int(text) if int(text) < MAX_SLOTS else None


def checked_prefix(prefix: object) -> str:
    """Return a prefix whose ids fit into the state table. Raises ConfigError."""
    if not isinstance(prefix, str) or not prefix or prefix != prefix.strip():  # MySQL ignores trailing blanks
        raise ConfigError(
            f"prefix must be the beginning of an application's transactional ids, without surrounding blanks, "
            f"not {shown(prefix)}"
        )
    checked_transactional_id(transactional_id_of(prefix, MAX_SLOTS))
    return prefix
