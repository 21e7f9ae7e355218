"""The last stable offset, and the aborted transactions below it, for read_committed consumers (KIP-98, 3.4, 3.5).

`UnstableTransactions.advance_high_watermark` computes the last stable offset; `PartitionLog` calls it with every move
of the high watermark. The aborted index tells a Fetch which transactions a consumer has to skip.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple


class CompletedTransaction(NamedTuple):
    """A transaction with data whose marker is written."""

    producer_id: int
    first_offset: int
    marker_offset: int


_marker_offset = attrgetter("marker_offset")


class UnstableTransactions:
    """Open transactions, and completed ones whose marker the high watermark has not passed."""

    __slots__ = ("_open", "_unreplicated")

    def __init__(self) -> None:
        # producer id -> first offset; offsets only rise, so the first entry is the lowest. To find it, a plain dict
        # would search the slots of all removed entries.
        self._open: OrderedDict[int, int] = OrderedDict()
        self._unreplicated: list[CompletedTransaction] = []  # in the order of their markers

    def clear(self) -> None:
        """Forget all transactions."""
        self._open.clear()
        self._unreplicated.clear()

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Record that a transaction is open from `first_offset` on; further calls for later batches are harmless."""
        self._open[producer_id] = first_offset

    def complete(self, producer_id: int, marker_offset: int) -> CompletedTransaction:
        """Record the marker of an open transaction. Raises KeyError if none is open."""
        completed = CompletedTransaction(producer_id, self._open.pop(producer_id), marker_offset)
        self._unreplicated.append(completed)
        return completed

    def advance_high_watermark(self, high_watermark: int) -> int:
        """Forget completed transactions whose marker is below the high watermark; return the last stable offset.

        That is the first offset of the earliest transaction that is open, or whose marker is not replicated, if it is
        below the high watermark; else the high watermark.
        """
        lowest = high_watermark
        if self._unreplicated:
            passed = bisect_left(self._unreplicated, high_watermark, key=_marker_offset)
            del self._unreplicated[:passed]
            for completed in self._unreplicated:
                lowest = min(lowest, completed.first_offset)
        if self._open:
            lowest = min(lowest, next(iter(self._open.values())))
        return lowest

    def first_open_offset(self) -> int | None:
        """Return the first offset of the earliest open transaction, or None."""
        return next(iter(self._open.values()), None)

    def first_open_producer_id(self) -> int | None:
        """Return the producer id of the earliest open transaction, or None."""
        return next(iter(self._open), None)


# --- the aborted index ---------------------------------------------------------------------------------------------


class AbortedTransaction(NamedTuple):
    """One row of `abortedTransactions` in a Fetch response."""

    producer_id: int
    first_offset: int


class AbortedIndexEntry(NamedTuple):
    """One aborted transaction with data in this partition; Kafka keeps these in a `.txnindex` file."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the abort marker."""
    last_stable_offset: int
    """First offset of the earliest transaction still open at the marker, else the marker's offset + 1."""


_last_offset = attrgetter("last_offset")
_ENTRY = struct.Struct(">hqqqq")  # version, then the entry's fields
_VERSION = 0


class AbortedIndex:
    """Entries in the order of their markers, so that `last_offset` only rises."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[AbortedIndexEntry] = []

    def add(self, entry: AbortedIndexEntry) -> None:
        """Append the entry of the marker just written. Raises ValueError if a later marker is indexed."""
        if self._entries and entry.last_offset <= self._entries[-1].last_offset:
            raise ValueError(f"marker offset {entry.last_offset} is not above {self._entries[-1].last_offset}")
        self._entries.append(entry)

    def search(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedIndexEntry], bool]:
        """Return transactions with records in [fetch_offset, upper_bound), in the order of their markers.

        An entry whose last stable offset reaches `upper_bound` ends the search: every transaction that began below the
        bound had been completed by then, so no later marker can belong to one. The second part of the result is False
        if no entry ended the search, so that the next segment's index must be searched as well.
        """
        found = []
        entries = self._entries
        for index in range(bisect_left(entries, fetch_offset, key=_last_offset), len(entries)):
            entry = entries[index]
            if entry.first_offset < upper_bound:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def below(self, offset: int) -> AbortedIndex:
        """Return an index of the entries whose markers are below `offset`."""
        index = AbortedIndex()
        index._entries = self._entries[: bisect_left(self._entries, offset, key=_last_offset)]
        return index

    def __iter__(self) -> Iterator[AbortedIndexEntry]:
        return iter(self._entries)

    def encode(self) -> bytes:
        """Encode the entries in the format of Kafka's `.txnindex`."""
        return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self._entries)

    @classmethod
    def decode(cls, data: bytes) -> AbortedIndex:
        """Decode the output of `encode`. Raises ValueError."""
        if len(data) % _ENTRY.size:
            raise ValueError(f"{len(data)} bytes are not a whole number of entries")
        index = cls()
        for version, *fields in _ENTRY.iter_unpack(data):
            if version != _VERSION:
                raise ValueError(f"an entry of version {version}")
            index.add(AbortedIndexEntry(*fields))
        return index
