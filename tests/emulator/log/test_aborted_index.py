"""The search of the aborted index."""

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


# pid 1: 0..10, open meanwhile pid 2: 5..20, pid 3: 12..15; then pid 1 again 30..40
INDEX = index_of((1, 0, 10, 5), (3, 12, 15, 5), (2, 5, 20, 21), (1, 30, 40, 41))


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "expected"),
    [
        (0, 5, [(1, 0)]),
        (0, 6, [(1, 0), (2, 5)]),
        (0, 13, [(1, 0), (3, 12), (2, 5)]),
        (0, 100, [(1, 0), (3, 12), (2, 5), (1, 30)]),
        (10, 11, [(1, 0), (2, 5)]),
        (11, 12, [(2, 5)]),
        (16, 21, [(2, 5)]),
        (21, 30, []),
        (21, 31, [(1, 30)]),
        (40, 41, [(1, 30)]),
        (41, 99, []),
    ],
)
def test_transactions_that_overlap_a_range(
    fetch_offset: int, upper_bound: int, expected: list[tuple[int, int]]
) -> None:
    assert overlapping(INDEX, fetch_offset, upper_bound) == expected


def test_markers_only_come_in_order() -> None:
    with pytest.raises(ValueError, match="not above"):
        index_of((1, 0, 10, 11), (2, 3, 10, 11))


def test_the_search_ends_where_nothing_below_the_bound_was_open() -> None:
    index = index_of((1, 0, 1, 2), (2, 0, 9, 10))  # the second contradicts the first: it cannot come from a log
    assert overlapping(index, 0, 2) == [(1, 0)]
    assert overlapping(index, 0, 3) == [(1, 0), (2, 0)]
