"""Remembered results are those of the function, not equal ones of another type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.proof.remembered import remembered


class One(NamedTuple):
    number: int


class Other(NamedTuple):
    number: int


def test_a_function_is_called_once_for_the_same_argument() -> None:
    called: list[One] = []

    @remembered
    def number_of(value: One) -> int:
        called.append(value)
        return value.number

    first, equal = One(1), One(1)
    assert [number_of(first), number_of(first), number_of(equal)] == [1, 1, 1]
    assert len(called) == 2


def test_equal_results_are_one_object() -> None:
    @remembered
    def next_of(value: One) -> One:
        return One(value.number + 1)

    assert next_of(One(1)) is next_of(One(1))


def test_equal_results_of_other_types_are_not_mixed_up() -> None:
    @remembered
    def same_as(kind: type[One] | type[Other]) -> tuple[One | Other, int]:
        return kind(7), 7

    assert type(same_as(One)[0]) is One
    assert type(same_as(Other)[0]) is Other


def test_what_is_iterated_over_can_be_iterated_over_again() -> None:
    @remembered
    def numbers(count: int) -> Iterator[int]:
        yield from range(count)

    assert list(numbers(3)) == list(numbers(3)) == [0, 1, 2]
