"""Producers that share a transactional id never share a producer epoch, in any order of their requests."""

from __future__ import annotations

import pytest

from tests.proof.kafka_model import PROFILES
from tests.proof.producers import ProducerSpace

pytestmark = pytest.mark.timeout(900)  # a large search, on a busy machine


def assert_nothing_wrong(tier: int, *ends: tuple[str, ...]) -> None:
    found = ProducerSpace(tier, ends).search()
    assert found.wrong is None, str(found.story)
    assert found.at_rest > 0


def test_an_abort_does_not_get_the_pair_of_a_successor() -> None:
    """Kafka 4 takes an abort by the pair before the current one for a repetition, and returns the current one."""
    assert_nothing_wrong(3, ("abort", "abort", "commit"), ("commit", "commit"))


def test_a_raised_epoch_is_not_that_of_a_successor() -> None:
    """Kafka 3.9 takes InitProducerId by the pair before the current one for a repetition (KIP-360)."""
    assert_nothing_wrong(4, ("abort", "abort"), ("commit",))


@pytest.mark.proof
@pytest.mark.parametrize("tier", PROFILES)
def test_no_producer_commits_a_transaction_aborted_by_another(tier: int) -> None:
    assert_nothing_wrong(tier, ("abort", "abort", "commit"), ("commit", "commit"))
