"""The index of aborted transactions from which Fetch tells read_committed consumers what to skip (KIP-98, 3.5)."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple


class AbortedTransaction(NamedTuple):
    """One row of `abortedTransactions` in a Fetch answer."""

    producer_id: int
    first_offset: int


class AbortedIndexEntry(NamedTuple):
    """One aborted transaction that had data here; what Kafka keeps in a `.txnindex` file."""

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
        """Append the entry of the marker just written. Raises ValueError when it is not the newest."""
        if self._entries and entry.last_offset <= self._entries[-1].last_offset:
            raise ValueError(f"marker offset {entry.last_offset} is not above {self._entries[-1].last_offset}")
        self._entries.append(entry)

    def search(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedIndexEntry], bool]:
        """Transactions with records in [fetch_offset, upper_bound), in the order of their markers.

        An entry whose last stable offset reaches `upper_bound` ends the search: every transaction that began
        below the bound had been completed by then, so no later marker can belong to one. Whether that happened is
        the second part of the answer; if not, the next segment's index has to be searched as well.
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
        """The entries whose markers are below `offset`."""
        index = AbortedIndex()
        index._entries = self._entries[: bisect_left(self._entries, offset, key=_last_offset)]
        return index

    def __iter__(self) -> Iterator[AbortedIndexEntry]:
        return iter(self._entries)

    def encode(self) -> bytes:
        """The entries as Kafka's `.txnindex` has them."""
        return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self._entries)

    @classmethod
    def decode(cls, data: bytes) -> AbortedIndex:
        """What `encode` wrote. Raises ValueError."""
        if len(data) % _ENTRY.size:
            raise ValueError(f"{len(data)} bytes are no whole number of entries")
        index = cls()
        for version, *fields in _ENTRY.iter_unpack(data):
            if version != _VERSION:
                raise ValueError(f"an entry of version {version}")
            index.add(AbortedIndexEntry(*fields))
        return index
