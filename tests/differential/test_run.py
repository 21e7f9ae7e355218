"""The explained differences are those of the page."""

from __future__ import annotations

from tests.differential.explained import EXPLANATIONS
from tests.interop.differences import DIFFERENCES


def test_every_explained_difference_is_on_its_page() -> None:
    assert {each.row for each in EXPLANATIONS} <= {row for rows in DIFFERENCES.values() for row in rows}
