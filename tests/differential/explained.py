"""Differences that have a row on the page of differences: they are counted, and do not fail a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tests.differential.steps import Step


class Explanation(NamedTuple):
    """A row of `tests.interop.differences`, and how to tell that a difference is of it."""

    row: str
    about: re.Pattern[str]
    applies: Callable[[Sequence[Step]], bool]


def _first_commit_may_be_without_an_offset(steps: Sequence[Step]) -> bool:
    return any(step.values.get("metadata") == "long" for step in steps if step.api == "offset_commit")


EXPLANATIONS: Final = (
    Explanation(
        "a group whose first commit has no valid offset",
        re.compile(r"describe_groups\.groups\.(error_code 0 / 69|group_state Empty / Dead)"),
        _first_commit_may_be_without_an_offset,
    ),
)


def explanation_of(about: str, steps: Sequence[Step]) -> str | None:
    """Return the row that explains a difference, or None."""
    found = (each.row for each in EXPLANATIONS if each.about.fullmatch(about) and each.applies(steps))
    return next(found, None)
