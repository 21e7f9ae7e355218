"""No interleaving of blocks, publishers and faults loses a block of an outbox, publishes it twice, or out of order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.proof.kafka_log import Batch, visible
from tests.proof.kafka_model import PROFILES
from tests.proof.outbox import LEADS, NOT_PROVEN
from tests.proof.outbox_model import AddAgain, OnOutbox
from tests.proof.outbox_world import OutboxRules, OutboxSpace, ReducedOutbox
from tests.proof.spaces import both_ways, with_both_ways
from tests.proof.world import Budget, World

pytestmark = pytest.mark.timeout(900)  # a large search, on a busy machine

_ONE: Final = ((b"a1",),)
_TWO: Final = ((b"a1",), (b"b1",))
_TWO_OF_ONE: Final = ((b"a1", b"a2"),)

SMALL: Final = (
    *(OutboxSpace(tier, Budget(), _TWO) for tier in PROFILES),
    *(OutboxSpace(tier, Budget(losses=1)) for tier in PROFILES),
    *(OutboxSpace(tier, Budget(lapses=1), publishers=2) for tier in (1, 4)),
    *(OutboxSpace(tier, Budget(timeouts=1, deletions=1)) for tier in (3, 4)),
    *(OutboxSpace(tier, Budget(timeouts=1), is_readable=False) for tier in (3, 4)),
    *(OutboxSpace(tier, Budget(crashes=1), is_readable=False) for tier in (3, 4)),
    *(OutboxSpace(tier, Budget(timeouts=2), is_readable=False) for tier in (3, 4)),
    *(OutboxSpace(tier, Budget(), _TWO_OF_ONE, rounds=2, are_large=True) for tier in (1, 3)),
    OutboxSpace(1, Budget(kills=1), by_commit=True),
    OutboxSpace(1, Budget(losses=1), _TWO, touches=True),
    OutboxSpace(1, Budget(losses=1, hours=1)),
    OutboxSpace(1, Budget(losses=1, failovers=1)),
    OutboxSpace(1, Budget(crashes=1), after_crash=(b"c1",)),
    *(OutboxSpace(tier, Budget(losses=1), in_steps=True) for tier in (1, 3)),
    *(OutboxSpace(tier, Budget(timeouts=1, deletions=1), in_steps=True) for tier in (3, 4)),
    *(OutboxSpace(tier, Budget(), _TWO_OF_ONE, rounds=2, are_large=True, in_steps=True) for tier in (1, 3)),
    OutboxSpace(1, Budget(lapses=1), publishers=2, in_steps=True),
    OutboxSpace(1, Budget(losses=1, hours=1), in_steps=True),
    OutboxSpace(1, Budget(losses=1, failovers=1), in_steps=True),
    OutboxSpace(3, Budget(timeouts=2), is_readable=False, in_steps=True),
    *(both_ways(1, Budget(**{name: 1}), _ONE) for name in ("outages", "give_ups")),
    *(both_ways(tier, Budget(), ((), (b"b1",)))._replace(is_diverted=True) for tier in PROFILES),
    both_ways(1, Budget(give_ups=1), ((), (b"b1",)))._replace(is_diverted=True),
)
"""For `make test`."""

_ONE_FAULT: Final = ("crashes", "kills", "losses", "give_ups", "foreigners", "expiries", "moves", "terminations")

LARGE: Final = (
    *(OutboxSpace(tier, Budget(**{name: 1}), publishers=2) for tier in PROFILES for name in _ONE_FAULT),
    *(OutboxSpace(tier, Budget(lapses=1, **{name: 1}), publishers=2) for tier in (1, 3) for name in _ONE_FAULT),
    *(OutboxSpace(tier, Budget(losses=2)) for tier in PROFILES),
    *(OutboxSpace(tier, Budget(timeouts=1, **{name: 1})) for tier in (3, 4) for name in ("losses", "kills", "crashes")),
    *(OutboxSpace(tier, Budget(timeouts=1, lapses=1), publishers=2) for tier in (3, 4)),
    *(OutboxSpace(tier, Budget(timeouts=1, deletions=1, lapses=1), publishers=2) for tier in (3, 4)),
    *(OutboxSpace(tier, Budget(**{name: 1}), is_readable=False) for tier in (3, 4) for name in _ONE_FAULT),
    *(OutboxSpace(tier, Budget(crashes=1, timeouts=1), is_readable=False) for tier in (3, 4)),
    *(OutboxSpace(tier, Budget(lapses=1), publishers=2, is_readable=False) for tier in (3, 4)),
    *(OutboxSpace(tier, Budget(crashes=1), _TWO_OF_ONE, are_large=True, is_readable=False) for tier in (3, 4)),
    *(OutboxSpace(tier, Budget(losses=1, failovers=1)) for tier in (2, 3, 4)),
    OutboxSpace(1, Budget(losses=1, failovers=1), _TWO),
    OutboxSpace(1, Budget(lapses=1, failovers=1), publishers=2),
    OutboxSpace(1, Budget(crashes=1, failovers=1)),
    OutboxSpace(1, Budget(losses=1, hours=1), _TWO),
    OutboxSpace(1, Budget(losses=1, kills=1), by_commit=True),
    OutboxSpace(1, Budget(losses=1), ((b"a1", b"a2"), (b"b1",)), are_large=True),
    OutboxSpace(1, Budget(lapses=1), _TWO, publishers=2, rounds=2, touches=True),
    OutboxSpace(1, Budget(crashes=1, losses=1), after_crash=(b"c1",)),
    both_ways(3, Budget(outages=1), _ONE),
    both_ways(1, Budget(outages=1), _TWO_OF_ONE),
    both_ways(1, Budget(outages=1))._replace(rounds=0),
    *(space for tier in PROFILES for space in with_both_ways(tier, 1) if space.is_diverted and space.written == _ONE),
)


def assert_nothing_wrong(space: OutboxSpace) -> None:
    found = space.search()
    assert found.wrong is None, str(found.story)
    assert found.is_complete
    assert found.at_rest > 0


@pytest.mark.parametrize("space", SMALL, ids=lambda space: space.name)
def test_nothing_is_wrong_in_a_small_space(space: OutboxSpace) -> None:
    assert_nothing_wrong(space)


@pytest.mark.parametrize("space", LARGE, ids=lambda space: space.name)
def test_nothing_is_wrong_in_a_large_space(space: OutboxSpace) -> None:
    assert_nothing_wrong(space)


# ---- reached states -------------------------------------------------------------------------------------------------


Reached = Callable[[OutboxRules, World], bool]


def assert_reached(space: OutboxSpace, reached: Reached) -> None:
    """Assert that a search comes to such a state."""

    class Seeking(ReducedOutbox):
        def wrong(self, world: World) -> str | None:
            return "reached" if reached(self, world) else super().wrong(world)

    assert space.search(kind=Seeking).wrong == "reached"


def test_a_block_is_published_while_its_process_queries_its_outcome() -> None:
    def is_moved(rules: OutboxRules, world: World) -> bool:
        asks = rules.request_of(world, 0)
        is_about_evidence = isinstance(asks, OnOutbox) and asks.number is not None and not asks.adds
        return is_about_evidence and b"a1" in visible(world.kafka.logs[0])

    assert_reached(OutboxSpace(1, Budget(losses=1)), is_moved)


def test_a_commit_takes_effect_after_it_was_found_in_progress() -> None:
    def is_late(rules: OutboxRules, world: World) -> bool:
        asks = rules.request_of(world, 0)
        return isinstance(asks, AddAgain) and b"a1" in world.table and rules.knows_of(world, 0, asks)

    assert_reached(OutboxSpace(1, Budget(losses=1)), is_late)


def test_one_publisher_holds_the_lock_and_another_the_lease() -> None:
    def are_two(rules: OutboxRules, world: World) -> bool:
        holders = [txn.process for txn in world.txns if txn.is_locked]
        owners = [owner for _, _, owner, _ in world.leases if owner is not None]
        return bool(holders and owners) and not owners[0].startswith(f"{holders[0]}.")

    assert_reached(OutboxSpace(1, Budget(lapses=1), publishers=2), are_two)


@pytest.mark.proof
def test_a_late_request_of_one_publisher_arrives_after_another_has_published() -> None:
    def is_late(rules: OutboxRules, world: World) -> bool:
        both = all(LEADS in rules.told_by(world, number) for number in (1, 2))
        return both and bool(world.late) and b"a1" in visible(world.kafka.logs[0])

    assert_reached(OutboxSpace(3, Budget(losses=1, lapses=1), publishers=2), is_late)


def test_a_later_number_is_committed_first_and_published_last() -> None:
    def is_turned_round(rules: OutboxRules, world: World) -> bool:
        found = tuple(visible(world.kafka.logs[0]))
        return len(found) == 2 and world.decided[:2] == found[::-1]

    assert_reached(OutboxSpace(1, Budget(), _TWO), is_turned_round)


@pytest.mark.proof
def test_an_outcome_is_unknown_after_an_hour() -> None:
    def is_unknown(rules: OutboxRules, world: World) -> bool:
        return (b"a1", None) in rules.told_by(world, 0)

    assert_reached(OutboxSpace(1, Budget(losses=1, hours=1), _TWO), is_unknown)


def test_records_aborted_by_the_broker_are_published_from_the_kept_rows() -> None:
    def is_again(rules: OutboxRules, world: World) -> bool:
        (log,) = world.kafka.logs
        times = sum(isinstance(entry, Batch) and b"a1" in entry.records for entry in log)
        return bool(world.log_starts) and times == 2 and b"a1" in visible(log)

    assert_reached(OutboxSpace(3, Budget(timeouts=1, deletions=1)), is_again)


def test_an_outbox_stops_where_nothing_proves_an_abort() -> None:
    def has_stopped(rules: OutboxRules, world: World) -> bool:
        return rules.is_at_rest(world) and NOT_PROVEN in rules.told_by(world, -1)

    assert_reached(OutboxSpace(4, Budget(timeouts=1, deletions=1)), has_stopped)
    assert_reached(OutboxSpace(4, Budget(timeouts=1), is_readable=False), has_stopped)


def test_a_block_goes_to_kafka_again_after_another_went_to_the_outbox() -> None:
    def is_back(rules: OutboxRules, world: World) -> bool:
        return {(b"a1", "STORED"), (b"a2", "COMMITTED")} <= {*rules.told_by(world, 0)}

    assert_reached(both_ways(1, Budget(outages=1), _TWO_OF_ONE), is_back)


@pytest.mark.parametrize("tier", PROFILES)
def test_nothing_is_wrong_without_reductions(tier: int) -> None:
    found = OutboxSpace(tier, Budget(losses=1)).search(kind=OutboxRules)
    assert found.wrong is None, str(found.story)
    assert found.is_complete
