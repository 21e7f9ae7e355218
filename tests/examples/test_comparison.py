"""Every kind of divergence between table and topic is found, counted once, and named."""

from __future__ import annotations

import pytest

from examples.flights.comparison import Comparison, TopicRecord, compare
from examples.flights.events import Event

ROWS = [Event(number, key, f'{{"event":{number}}}') for number, key in enumerate("aabab")]


def records_of(*numbers: int) -> list[TopicRecord]:
    """Return the records of these rows, in one partition and in this order."""
    return [TopicRecord(0, place, ROWS[number].key, ROWS[number].value) for place, number in enumerate(numbers)]


def counts(comparison: Comparison) -> dict[str, int]:
    return {kind: len(found) for kind, found in comparison.by_kind().items() if found}


def test_equal_sides_agree() -> None:
    comparison = compare(ROWS, records_of(0, 1, 2, 3, 4), events=5)
    assert (comparison.rows, comparison.records, comparison.divergences) == (5, 5, 0)


def test_keys_may_interleave() -> None:
    assert compare(ROWS, records_of(2, 0, 4, 1, 3), events=5).divergences == 0


def test_keys_may_be_in_different_partitions_and_are_ordered_by_offset() -> None:
    records = [
        TopicRecord(3 if row.key == "a" else 1, 100 - place, row.key, row.value)
        for place, row in enumerate(reversed(ROWS))
    ]
    assert compare(ROWS, records, events=5).divergences == 0


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (records_of(0, 1, 2, 4), {"lost": 1}),
        (records_of(0, 1, 2, 3, 4, 4, 4), {"doubled": 2}),
        (records_of(0, 1, 2, 3, 4, 1), {"doubled": 1}),
        (records_of(1, 0, 2, 3, 4), {"reordered": 1}),
        (records_of(3, 0, 1, 2, 4), {"reordered": 2}),
        (records_of(), {"lost": 5}),
    ],
)
def test_duplicates_losses_and_reordering_are_counted(records: list[TopicRecord], expected: dict[str, int]) -> None:
    comparison = compare(ROWS, records, events=5)
    assert counts(comparison) == expected
    assert comparison.divergences == sum(expected.values())


@pytest.mark.parametrize(
    "altered",
    [
        TopicRecord(0, 9, "b", ROWS[0].value),
        TopicRecord(0, 9, None, ROWS[0].value),
        TopicRecord(0, 9, "a", '{"event":0,"data":1}'),
    ],
)
def test_another_key_or_value_is_an_alteration(altered: TopicRecord) -> None:
    comparison = compare(ROWS[:1], [altered], events=1)
    assert counts(comparison) == {"altered": 1}


@pytest.mark.parametrize("value", ['{"event":17}', "not json", "[]", '{"event":"1"}', '{"event":true}', "7", "", None])
def test_a_record_without_a_row_is_unexpected(value: str | None) -> None:
    comparison = compare(ROWS, [*records_of(0, 1, 2, 3, 4), TopicRecord(1, 0, "a", value)], events=5)
    assert counts(comparison) == {"unexpected": 1}


def test_a_key_in_two_partitions_has_no_order() -> None:
    strayed = TopicRecord(1, 0, "a", ROWS[3].value)
    assert counts(compare(ROWS, [*records_of(0, 1, 2, 4), strayed], events=5)) == {"reordered": 1}


def test_an_event_that_is_in_neither_is_missing() -> None:
    assert counts(compare(ROWS[:4], records_of(0, 1, 2, 3), events=5)) == {"missing": 1}


def test_a_published_event_without_a_row_is_counted_once() -> None:
    assert counts(compare(ROWS[:4], records_of(0, 1, 2, 3, 4), events=5)) == {"unexpected": 1}


def test_examples_are_sentences_that_name_the_event() -> None:
    examples = compare(ROWS, records_of(0, 1, 2, 4), events=5).examples(10)
    assert examples == ["event 3 (key 'a') has a row and no record"]
