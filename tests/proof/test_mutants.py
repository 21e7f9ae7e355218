"""The search finds each planted mistake, and nothing in the same space without it."""

from __future__ import annotations

import pytest

from tests.proof.kill_mutants import BEGIN, END, PAGE, ROOT, kill
from tests.proof.mutants import MUTANTS, AnySpace, Mutant

pytestmark = pytest.mark.timeout(900)  # a large search, on a busy machine

_CHEAPEST = next(mutant for mutant in MUTANTS if mutant.name == "kafka-first")

_MOST_STATES = 100_000
"""More states than most mutants take. `test_exhaustive.py` searches larger spaces."""

_SPACES = sorted({mutant.space for mutant in MUTANTS}, key=lambda space: space.name)


def assert_found(mutant: Mutant) -> None:
    killed = kill(mutant)
    assert killed.found
    assert killed.depth, "no step leads to what was found"


def test_a_cheap_mutant_is_found() -> None:
    assert_found(_CHEAPEST)


@pytest.mark.proof
@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each != _CHEAPEST], ids=lambda each: each.name)
def test_every_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)


@pytest.mark.proof
@pytest.mark.parametrize("space", _SPACES, ids=lambda space: space.name)
def test_nothing_is_found_without_a_mutant(space: AnySpace) -> None:
    found = space.search(_MOST_STATES)
    assert found.wrong is None, str(found.story)


def test_mutants_name_lines_that_exist_once() -> None:
    edits = [(each.name, edit) for each in MUTANTS for edit in each.edits]
    assert [(name, edit) for name, edit in edits if (ROOT / edit.file).read_text().count(edit.line) != 1] == []


def test_the_page_has_each_mutant() -> None:
    text = PAGE.read_text()
    rows = [row for row in text[text.index(BEGIN) : text.index(END)].splitlines() if row.startswith("| ")]
    listed = [row.strip("| ").split(" | ")[0] for row in rows]
    assert listed == ["mutant", *(each.name for each in MUTANTS)]
