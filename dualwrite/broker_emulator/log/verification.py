"""Verification guards: a transactional append must be the one that was verified (KIP-890 part 1, KAFKA-14884).

Between the coordinator's response that a transaction is ongoing and the append that was verified, the transaction may
be aborted and its marker written. Such a late append would leave a transaction open that is never ended: a hanging
transaction. So the log creates a guard before the coordinator is asked, every marker removes it, and the append must
present it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from crc32c import crc32c

from dualwrite.broker_emulator.log.record_batch import HEADER_BYTES, BatchHeader, CorruptRecordError, parse_header


class VerificationGuard:
    """A token that an append presents to prove its verification; equal only to itself."""

    __slots__ = ()

    SENTINEL: ClassVar[VerificationGuard]
    """The guard when a transaction is open already and needs no verification; it proves nothing."""


VerificationGuard.SENTINEL = VerificationGuard()


class VerificationEntry(NamedTuple):
    """The state of one producer while its first append of a transaction is being verified."""

    guard: VerificationGuard
    producer_epoch: int
    lowest_sequence: int
    """Lowest base sequence seen with this epoch: a later one must not be appended first (KAFKA-14920)."""
    supports_epoch_bump: bool
    """Whether the client bumps its epoch per transaction (KIP-890 part 2), so that it must start at sequence 0."""


def merge_attempt(
    entry: VerificationEntry, producer_epoch: int, base_sequence: int, supports_epoch_bump: bool
) -> VerificationEntry:
    """Return `entry` after one more attempt: a higher epoch starts over, a lower one is ignored; the guard stays."""
    if producer_epoch > entry.producer_epoch:
        return VerificationEntry(entry.guard, producer_epoch, base_sequence, supports_epoch_bump)
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
            entry = merge_attempt(entry, producer_epoch, base_sequence, supports_epoch_bump)
        self._entries[producer_id] = entry
        return entry.guard

    def get(self, producer_id: int) -> VerificationEntry | None:
        """Return the pending entry of `producer_id`, or None."""
        return self._entries.get(producer_id)

    def end(self, producer_id: int) -> None:
        """Forget the entry: a transactional batch or a marker of this producer was appended."""
        if self._entries.pop(producer_id, None) is not None:
            self._seen_ms.pop(producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove entries that were already pending at a scan at least `expiration_ms` ago."""
        for producer_id in list(self._entries):
            if now_ms - self._seen_ms.setdefault(producer_id, now_ms) >= expiration_ms:
                self.end(producer_id)


_MAGIC_AT = 16
_MAGIC = b"\x02"
_CHECKED_FROM = 21
_LENGTH_ENDS_AT = 12


class Damage(NamedTuple):
    """The first position at which there is no intact batch."""

    position: int
    problem: str
    intact_after: int | None
    """Position of an intact batch after it; None if everything up to the end is a torn write."""

    def moved_by(self, distance: int) -> Damage:
        """Return the same damage with `distance` added to its positions."""
        intact_after = None if self.intact_after is None else self.intact_after + distance
        return Damage(self.position + distance, self.problem, intact_after)


def scan(
    data: memoryview,
    next_offset: int,
    accept: Callable[[BatchHeader, memoryview], None],
    *,
    may_have_gaps: bool,
) -> Damage | None:
    """Call `accept` for every intact batch of `data`; return the damage at the first that is not intact or not next.

    `next_offset` is that of the first batch. `may_have_gaps`: compaction may have removed batches.
    """
    position = 0
    while position < len(data):
        try:
            header, batch = _intact_batch(data, position)
        except CorruptRecordError as error:
            return Damage(position, str(error), _find_intact(data, position + 1))
        if header.base_offset < next_offset or (header.base_offset > next_offset and not may_have_gaps):
            return Damage(position, f"offset {header.base_offset} where {next_offset} is next", position)
        accept(header, batch)
        position += header.size_bytes
        next_offset = header.last_offset + 1
    return None


def _intact_batch(data: memoryview, position: int) -> tuple[BatchHeader, memoryview]:
    header = parse_header(data, position)
    size = header.size_bytes
    if size < HEADER_BYTES:
        raise CorruptRecordError(f"a batch of {size} bytes cannot hold its own header")
    batch = data[position : position + size]
    if len(batch) < size:
        raise CorruptRecordError(f"a batch of {size} bytes is cut off after {len(batch)}")
    if crc32c(batch[_CHECKED_FROM:]) != header.crc:
        raise CorruptRecordError("the CRC of a batch does not match its contents")
    if header.last_offset_delta < 0:
        raise CorruptRecordError(f"a batch ends {-header.last_offset_delta} offsets before it begins")
    return header, batch


def _find_intact(data: memoryview, position: int) -> int | None:
    """Return the position of the first intact batch that begins at `position` or at any later byte."""
    contents = bytes(data[position:])
    magic_at = contents.find(_MAGIC, _MAGIC_AT)
    while magic_at >= 0:
        start = position + magic_at - _MAGIC_AT
        if _is_intact(data, start):
            return start
        magic_at = contents.find(_MAGIC, magic_at + 1)
    return None


def _is_intact(data: memoryview, position: int) -> bool:
    size = int.from_bytes(data[position + 8 : position + _LENGTH_ENDS_AT], "big", signed=True) + _LENGTH_ENDS_AT
    if not HEADER_BYTES <= size <= len(data) - position:
        return False
    try:
        _intact_batch(data, position)
    except CorruptRecordError:
        return False
    return True
