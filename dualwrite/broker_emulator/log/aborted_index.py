"""The index of aborted transactions from which Fetch tells read_committed consumers what to skip (KIP-98, 3.5)."""

from __future__ import annotations

from bisect import bisect_left
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

    def overlapping(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """Transactions with records in [fetch_offset, upper_bound), in the order of their markers.

        An entry whose last stable offset reaches `upper_bound` ends the search: every transaction that began
        below the bound had been completed by then, so no later marker can belong to one.
        """
        found = []
        entries = self._entries
        for index in range(bisect_left(entries, fetch_offset, key=_last_offset), len(entries)):
            entry = entries[index]
            if entry.first_offset < upper_bound:
                found.append(AbortedTransaction(entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= upper_bound:
                break
        return found
