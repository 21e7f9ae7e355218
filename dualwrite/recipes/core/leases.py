"""Leases of transactional ids: the interface of the table that divides a pool's ids among its processes.

The outcome of a dual write depends on its row lock and on Kafka's epoch, never on a lease: two processes with the same
lease fence each other. But leases tell recovery where to look: only the owner of an expired lease may have left
something open. So a process that has lost a lease may neither begin a Kafka transaction by an epoch that it got later,
nor store a block (`assert_held`): other processes may have recovered the id and given it back, and would never look at
it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from dualwrite.errors import ConfigError, FencedError
from dualwrite.exact import exact
from dualwrite.recipes.core.settings import checked_transactional_id
from dualwrite.recipes.core.store import DatabaseTransaction
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

    async def has(self, slot: int, block: DatabaseTransaction) -> bool:
        """Return whether this owner has the lease of a slot now, expired or not.

        Where no other transaction can read the table while `block` holds its row lock, `block` reads it.
        """

    async def release(self, slot: int) -> None:
        """Give back a slot that has nothing open. Harmless if this owner does not have it."""

    async def abandon(self, slot: int) -> None:
        """Let a lease expire now, so that its slot is recovered before use. Harmless if it belongs to another owner."""

    async def adopt(self) -> None:
        """Create expired leases for slots that have a state row and no lease, because the table was emptied."""


_OUTBOX: Final = "-outbox"
_OUTBOX_ID: Final = f"{_OUTBOX}-0"


class LeaseLostError(FencedError):
    """Another process has the lease of a transactional id, or has recovered the id and given it back."""


class HeldLease:
    """The lease of one transactional id, as the process that has taken the id over sees it."""

    def __init__(self, leases: Leases, slot: int) -> None:
        self._leases = leases
        self._slot = slot

    async def assert_held(self, transactional_id: str, block: DatabaseTransaction) -> None:
        """Raise LeaseLostError if this process no longer has the lease.

        Call it between the take-over, which fences all others, and the first transaction of Kafka. A process that
        claims the lease later also takes the id over later, and then ends the open transaction.
        """
        if not await self._leases.has(self._slot, block):
            raise LeaseLostError(
                f"this process has lost the lease of transactional id {transactional_id!r}, which it did not renew "
                "within lease_ms; nothing was written under this id: repeat the dual write, which gets another id"
            )


def transactional_id_of(prefix: str, slot: int) -> str:
    return f"{prefix}-{slot}"


def outbox_prefix_of(prefix: str) -> str:
    """Return the prefix of the only slot of a pool's outbox, and the name of the row of its diversion."""
    return f"{prefix}{_OUTBOX}"


def outbox_id_of(prefix: str) -> str:
    return transactional_id_of(outbox_prefix_of(prefix), 0)


def is_outbox(transactional_id: str) -> bool:
    return transactional_id.endswith(_OUTBOX_ID)


def slot_of(prefix: str, transactional_id: str) -> int | None:
    """Return the slot of `prefix` that an id names, or None: `orders-eu-0` is not a slot of `orders`."""
    text = transactional_id.removeprefix(f"{prefix}-")
    if text == transactional_id or not (text.isascii() and text.isdecimal() and text == str(int(text))):
        return None
    return int(text) if int(text) < MAX_SLOTS else None


def checked_single_id(transactional_id: str) -> str:
    """Return the id of a writer without a pool. Raises ConfigError if it could be that of a pool's outbox."""
    if transactional_id.endswith((_OUTBOX_ID, _OUTBOX)):
        raise ConfigError(
            f"transactional_id must not end with {_OUTBOX_ID!r} or {_OUTBOX!r}, as {shown(transactional_id)} does: "
            "those endings are reserved for the outboxes of pools"
        )
    return transactional_id


def checked_prefix(prefix: object) -> str:
    """Return a prefix whose ids fit into the state table. Raises ConfigError."""
    if not isinstance(prefix, str) or not prefix or prefix != prefix.strip():  # MySQL ignores trailing blanks
        raise ConfigError(
            f"prefix must be the beginning of an application's transactional ids, without surrounding blanks, "
            f"not {shown(prefix)}"
        )
    prefix = exact(prefix)
    checked_transactional_id(transactional_id_of(prefix, MAX_SLOTS))
    if prefix.endswith(_OUTBOX):
        raise ConfigError(
            f"prefix must not end with {_OUTBOX!r}, as {shown(prefix)} does: that ending is reserved for the outboxes "
            "of pools"
        )
    return prefix
