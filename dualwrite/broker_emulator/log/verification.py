"""Verification guards: a transactional append must be the verified one (KIP-890 part 1, KAFKA-14884).

Between the coordinator's response that a transaction is ongoing and the verified append, the transaction may be aborted
and its marker written. Such a late append would leave a transaction open that is never ended: a hanging transaction. So
the log creates a guard before the coordinator is asked, every marker removes it, and the append must present it.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple


class VerificationGuard:
    """A token that an append presents to prove its verification; equal only to itself."""

    __slots__ = ()

    SENTINEL: ClassVar[VerificationGuard]
    """The guard if a transaction is already open and needs no verification; it proves nothing."""


VerificationGuard.SENTINEL = VerificationGuard()


class VerificationEntry(NamedTuple):
    """The state of one producer while its first append of a transaction is being verified."""

    guard: VerificationGuard
    producer_epoch: int
    lowest_sequence: int
    """Lowest base sequence of this epoch so far: a later one must not be appended first (KAFKA-14920)."""
    supports_epoch_bump: bool
    """Whether the client bumps its epoch per transaction (KIP-890 part 2), so that it must start at sequence 0."""


def merge_attempt(entry: VerificationEntry, producer_epoch: int, base_sequence: int) -> VerificationEntry:
    """Return `entry` after one more attempt: a higher epoch starts over, a lower one is ignored.

    The guard and the client's `supports_epoch_bump` stay those of the first attempt (observed: 4.4.0).
    """
    if producer_epoch > entry.producer_epoch:
        return entry._replace(producer_epoch=producer_epoch, lowest_sequence=base_sequence)
    if producer_epoch == entry.producer_epoch and base_sequence < entry.lowest_sequence:
        return entry._replace(lowest_sequence=base_sequence)
    return entry


class Verifications:
    """The pending verifications of one partition, by producer id."""

    __slots__ = ("_entries", "_seen_ms")

    def __init__(self) -> None:
        self._entries: dict[int, VerificationEntry] = {}
        self._seen_ms: dict[int, int] = {}

    def begin(
        self, producer_id: int, producer_epoch: int, base_sequence: int, supports_epoch_bump: bool
    ) -> VerificationGuard:
        """Create or reuse the entry of `producer_id` and return its guard."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = VerificationEntry(VerificationGuard(), producer_epoch, base_sequence, supports_epoch_bump)
        else:
            entry = merge_attempt(entry, producer_epoch, base_sequence)
        self._entries[producer_id] = entry
        return entry.guard

    def get(self, producer_id: int) -> VerificationEntry | None:
        """Return the pending entry of `producer_id`, or None."""
        return self._entries.get(producer_id)

    def end(self, producer_id: int) -> None:
        """Forget the entry: a transactional batch of this producer was appended."""
        if self._entries.pop(producer_id, None) is not None:
            self._seen_ms.pop(producer_id, None)

    def end_by_marker(self, producer_id: int, producer_epoch: int) -> None:
        """Forget the entry because a marker was appended, unless the entry may be of the next transaction.

        If each transaction has its own epoch, a marker has the epoch of the next transaction (KAFKA-18575). So the
        marker of a client that ends transactions without a bump also leaves its own entry.
        """
        entry = self._entries.get(producer_id)
        if entry is not None and not (entry.supports_epoch_bump and entry.producer_epoch == producer_epoch):
            self.end(producer_id)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove entries that were already pending at a scan at least `expiration_ms` ago."""
        for producer_id in list(self._entries):
            if now_ms - self._seen_ms.setdefault(producer_id, now_ms) >= expiration_ms:
                self.end(producer_id)
