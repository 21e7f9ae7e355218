"""The table of refusals has a row for each exception of the library, by its own name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dualwrite import errors
from dualwrite.cli.failures import exit_code
from dualwrite.errors import DualWriteError, FencedError, OutcomeUnknown
from dualwrite.recipes.core.judge import REFUSALS, Concerns, refusal_of
from dualwrite.recipes.recovery.plan import NEEDS_OPERATOR, Action

EXCEPTIONS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, DualWriteError)]


@pytest.mark.parametrize("exception", EXCEPTIONS, ids=lambda exception: exception.__name__)
def test_each_exception_has_a_row(exception: type[DualWriteError]) -> None:
    """Not that of its base: a new class is judged when it is written."""
    assert exception in REFUSALS, f"{exception.__name__} needs a row in dualwrite/recipes/core/judge.py"
    row = REFUSALS[exception]
    assert row.name
    assert row.remedy
    assert row.exit_code == {"all blocks": 1, "the blocks of a transactional id": 1}.get(row.concerns, row.exit_code)


def test_a_refusal_that_lasts_has_a_check_of_doctor() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    (table,) = re.findall(r"^\| doctor \|.*?\n\n", page, re.DOTALL | re.MULTILINE)
    lasting = {f"`{error.__name__}`" for error, row in REFUSALS.items() if row.exit_code}
    assert {each for each in lasting if each not in table} == set()


def test_no_row_is_of_another_exception() -> None:
    assert set(REFUSALS) == set(EXCEPTIONS)


def test_refusals_of_an_id_are_actions_that_need_an_operator() -> None:
    names = {row.name for row in REFUSALS.values() if row.concerns is Concerns.ID}
    assert names == {action for action in NEEDS_OPERATOR if action in names}
    assert names <= set(Action)


def test_a_class_from_elsewhere_has_the_row_of_its_base() -> None:
    class SpecialFencedError(FencedError): ...

    assert refusal_of(SpecialFencedError("x")) is REFUSALS[FencedError]


def test_a_command_that_a_refusal_ends_has_its_exit_code() -> None:
    assert exit_code(errors.DatabaseMovedError("x")) == 1
    assert exit_code(errors.KafkaUnreachableError("x")) == exit_code(errors.AuthenticationError("x")) == 2
    assert exit_code(OutcomeUnknown("x", transactional_id="tid", prepared_state="")) == 2
