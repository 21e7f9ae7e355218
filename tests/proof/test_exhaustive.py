"""No interleaving of two processes with one transactional id loses a dual write, doubles it, or shows half of it."""

from __future__ import annotations

import pytest

from tests.proof.spaces import LARGE, SMALL, Space

pytestmark = pytest.mark.timeout(900)  # a large search, on a busy machine


def assert_nothing_wrong(space: Space) -> None:
    found = space.search()
    assert found.wrong is None, str(found.story)
    assert found.is_complete
    assert found.at_rest > 0


@pytest.mark.parametrize("space", SMALL, ids=lambda space: space.name)
def test_nothing_is_wrong_in_a_small_space(space: Space) -> None:
    assert_nothing_wrong(space)


@pytest.mark.parametrize("space", LARGE, ids=lambda space: space.name)
def test_nothing_is_wrong_in_a_large_space(space: Space) -> None:
    assert_nothing_wrong(space)
