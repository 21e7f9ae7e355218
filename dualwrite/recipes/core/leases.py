"""Leases of transactional ids: what a pool needs of the place where its processes agree who uses which.

A lease only saves work. Whether a dual write is safe, its row lock and Kafka's epoch decide: two processes that hold
one lease fence each other, and nothing else happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from dualwrite.errors import ConfigError
from dualwrite.recipes.core.settings import checked_transactional_id

MAX_SLOTS: Final = 1_000_000
"""Slots of a prefix are numbered from 0 to below this."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One slot of a prefix as the database knows it."""

    slot: int
    free: bool
    """Nobody has it, and who had it last left nothing open."""
    expired: bool
    """Who has it has not been heard of for too long, so it may have left something open."""


class Leases(Protocol):
    """The leases of one prefix, in the eyes of one owner. Each call is a database transaction of its own."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What it raises when the database cannot be reached or refuses a statement."""

    async def every_lease(self) -> list[Lease]:
        """All slots of the prefix that have ever been leased, lowest first."""

    async def add(self, slot: int) -> bool:
        """Lease a slot that has no lease yet. False where another process was faster."""

    async def claim(self, lease: Lease) -> bool:
        """Lease a slot that is free or expired. False where it is so no more."""

    async def renew(self, slots: set[int]) -> set[int]:
        """Put the end of the leases of these slots off. Which of them are held still."""

    async def release(self, slot: int) -> None:
        """Give back a slot that has nothing open. Harmless where it is not held."""

    async def abandon(self, slot: int) -> None:
        """Let the lease of a slot end now, so that it is recovered before it is used. Harmless where it is not held."""

    async def adopt(self) -> None:
        """Make leases, expired, for slots that have a state row and no lease: somebody emptied the table."""


def transactional_id_of(prefix: str, slot: int) -> str:
    """The transactional id of a slot."""
    return f"{prefix}-{slot}"


def slot_of(prefix: str, transactional_id: str) -> int | None:
    """Which slot of `prefix` an id is, or None: `orders-eu-0` is none of `orders`."""
    text = transactional_id.removeprefix(f"{prefix}-")
    if text == transactional_id or not (text.isascii() and text.isdecimal() and text == str(int(text))):
        return None
    return int(text) if int(text) < MAX_SLOTS else None


def checked_prefix(prefix: object) -> str:
    """One whose ids fit into the state table. Raises ConfigError."""
    if not isinstance(prefix, str) or not prefix or prefix != prefix.strip():  # MySQL ignores blanks at the end
        raise ConfigError(
            f"prefix takes what the transactional ids of an application begin with, without blanks around it, "
            f"not {prefix!r}"
        )
    checked_transactional_id(transactional_id_of(prefix, MAX_SLOTS))
    return prefix
