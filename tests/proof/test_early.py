"""May records be sent before the state row is locked? The search answers; see docs/internals/correctness.md."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.proof import early
from tests.proof.early import Ordering
from tests.proof.explore import Found
from tests.proof.world import Budget

pytestmark = pytest.mark.timeout(900)  # a large search, on a busy machine

_WRITTEN = ((b"a1", b"a2"), (b"b1",))
_WRITTEN_ONCE = ((b"a1",), (b"b1",))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence thousands of log lines."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def assert_nothing_wrong(found: Found) -> None:
    assert found.wrong is None, str(found.story)
    assert found.at_rest > 0


def test_under_the_lock_nothing_that_was_decided_is_aborted_on_tier_1() -> None:
    assert_nothing_wrong(early.search(1, Ordering.LOCKED, Budget(kills=1), _WRITTEN, strict=True))


def test_before_the_lock_it_is_if_the_row_alone_is_compared() -> None:
    """A take-over that ended without a commit has aborted the records, and left the row as it was."""
    found = early.search(1, Ordering.TRUSTING, Budget(kills=1), _WRITTEN, strict=True)
    assert found.wrong == "1:1 was decided, and Kafka has aborted it: it has to be published again"


@pytest.mark.parametrize("tier", [1, 3])
@pytest.mark.parametrize("ordering", [Ordering.ASKING, Ordering.PROVING], ids=lambda ordering: ordering.value)
def test_before_the_lock_it_is_if_the_owner_asks_the_coordinator(tier: int, ordering: Ordering) -> None:
    """A take-over that has lost its lock has seen the early records, and its abort arrives after the request."""
    found = early.search(tier, ordering, Budget(kills=1), _WRITTEN)
    assert found.wrong == "a process has aborted what it knew to be open, and what another has decided"


@pytest.mark.proof
def test_before_the_lock_it_is_not_if_a_take_over_marks_the_row_first() -> None:
    assert_nothing_wrong(early.search(1, Ordering.MARKED, Budget(kills=1), _WRITTEN, strict=True))


_FAULTS = [
    Budget(crashes=1),
    Budget(losses=1),
    Budget(give_ups=1),
    Budget(kills=2),
    Budget(kills=1, losses=1),
    Budget(kills=1, give_ups=1),
]


@pytest.mark.proof
@pytest.mark.parametrize("tier", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "budget", _FAULTS, ids=["crash", "loss", "give up", "kills", "kill and loss", "kill and give up"]
)
def test_a_mark_loses_and_doubles_nothing(tier: int, budget: Budget) -> None:
    assert_nothing_wrong(early.search(tier, Ordering.MARKED, budget, _WRITTEN if sum(budget) == 1 else _WRITTEN_ONCE))
