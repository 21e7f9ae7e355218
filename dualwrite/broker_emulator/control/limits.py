"""Lists that are shown in part, so that nobody can ask for more than the loop can do beside its clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias, TypeVar

from dualwrite.broker_emulator.control.shapes import AtLeast, AtMost

T = TypeVar("T")

Limit: TypeAlias = Annotated[int, AtLeast(1), AtMost(10_000), "How many are shown."]


def first(elements: Iterable[T], limit: int) -> tuple[list[T], int]:
    """The first of them, and how many there are."""
    shown: list[T] = []
    total = 0
    for element in elements:
        total += 1
        if total <= limit:
            shown.append(element)
    return shown, total
