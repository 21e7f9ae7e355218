"""The search finds the cases that the documentation excludes from its promises: it would find them elsewhere, too."""

from __future__ import annotations

import pytest

from tests.proof.explore import Explorer, Found
from tests.proof.kafka_model import OLD_GROUPS, PROFILES, UPGRADED, Profile
from tests.proof.shape import ONE_RECORD, Shape
from tests.proof.world import Budget, Rules


def search(
    profile: Profile,
    budget: Budget,
    shape: Shape = ONE_RECORD,
    written: tuple[tuple[bytes, ...], ...] = ((b"a1", b"a2"),),
) -> Found:
    """Search the space of one writer."""
    rules = Rules(profile, written, (), shape=shape)
    try:
        return Explorer(rules, budget).search()
    finally:
        rules.close()


@pytest.mark.parametrize("tier", PROFILES)
def test_a_living_writer_does_not_see_an_abort_in_one_partition(tier: int) -> None:
    """docs/guarantees.md: it is published again if no later dual write of a living writer has replaced the row."""
    found = search(PROFILES[tier], Budget(aborts=1))
    assert found.wrong == "{(b'a1', 0)} are committed, and not visible"


def test_an_abort_of_the_offsets_goes_unnoticed() -> None:
    """docs/guarantees.md: the log of the topic does not have them."""
    found = search(PROFILES[3], Budget(aborts=1), Shape(has_offsets=True), written=((b"a1",),))
    assert found.wrong == "{('a', 1)} are committed, and not visible"


def test_an_old_group_coordinator_forgets_pending_offsets() -> None:
    """docs/internals/late-requests.md: the group coordinator of Kafka 3.9 and older."""
    found = search(OLD_GROUPS, Budget(losses=1), Shape(has_offsets=True))
    assert found.wrong == "{('a', 2)} are committed, and not visible"
    assert found.story is not None
    assert any(step.sentence.startswith("late: CommitOffset") for step in found.story.steps)


def test_a_new_group_coordinator_does_not() -> None:
    assert search(PROFILES[4], Budget(losses=1), Shape(has_offsets=True)).wrong is None


def test_two_owners_may_share_an_epoch_while_the_cluster_is_upgraded() -> None:
    """docs/guarantees.md: one that has lost its lock, and still raises its epoch as before transaction.version 2."""
    found = search(UPGRADED, Budget(kills=1, upgrades=1), written=((b"a1",), (b"b1",)))
    assert found.wrong == "[b'a1'] are visible, and [b'b1'] were committed, in this order"
