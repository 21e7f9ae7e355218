"""The transactions that hold the last stable offset back (KIP-98, 3.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
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
        # producer id -> first offset; offsets only rise, so the first is the lowest. A plain dict would look for it
        # among the places of all that were removed before.
        self._open: OrderedDict[int, int] = OrderedDict()
        self._unreplicated: list[CompletedTransaction] = []  # in the order of their markers

    def clear(self) -> None:
        """Forget all transactions."""
        self._open.clear()
        self._unreplicated.clear()

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A transaction got a batch; `first_offset` is that of its first one, and repeating it changes nothing."""
        self._open[producer_id] = first_offset

    def complete(self, producer_id: int, marker_offset: int) -> CompletedTransaction:
        """The marker of an open transaction was written. Raises KeyError when none is open."""
        completed = CompletedTransaction(producer_id, self._open.pop(producer_id), marker_offset)
        self._unreplicated.append(completed)
        return completed

    def replicated_to(self, high_watermark: int) -> int:
        """Let completed transactions go whose marker is below the high watermark; the last stable offset then.

        That is the first unstable offset if there is one below the high watermark, else the high watermark.
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
        """First offset of the earliest open transaction."""
        return next(iter(self._open.values()), None)

    def first_open_producer_id(self) -> int | None:
        """Whose transaction has been open for longest."""
        return next(iter(self._open), None)
