"""The aborted index where no log leads; its searches are compared with a model in test_disk_model.py."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.log.last_stable_offset import AbortedIndex, AbortedIndexEntry


def overlapping(index: AbortedIndex, fetch_offset: int, upper_bound: int) -> list[tuple[int, int]]:
    found, _ = index.search(fetch_offset, upper_bound)
    return [(entry.producer_id, entry.first_offset) for entry in found]


def index_of(*entries: tuple[int, int, int, int]) -> AbortedIndex:
    index = AbortedIndex()
    for entry in entries:
        index.add(AbortedIndexEntry(*entry))
    return index


def test_markers_only_come_in_order() -> None:
    with pytest.raises(ValueError, match="not above"):
        index_of((1, 0, 10, 11), (2, 3, 10, 11))


def test_the_search_ends_where_nothing_below_the_bound_was_open() -> None:
    index = index_of((1, 0, 1, 2), (2, 0, 9, 10))  # the second contradicts the first: it cannot come from a log
    assert overlapping(index, 0, 2) == [(1, 0)]
    assert overlapping(index, 0, 3) == [(1, 0), (2, 0)]
