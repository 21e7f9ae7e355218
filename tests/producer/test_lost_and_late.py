"""Every request of a transaction lost, late, doubled or overtaken: no record is lost or doubled, nothing stays open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import (
    CloseBefore,
    Delay,
    DropReply,
    DropRequest,
    Duplicate,
    Hold,
    HoldReply,
    Profile,
    Reorder,
)
from dualwrite.broker_emulator.faults.actions import Action
from dualwrite.errors import FatalError
from dualwrite.producer import Producer, TopicPartition
from tests.producer.world import GROUP, PROFILES, World, on_profile, world_of

# The requests of three transactions with two partitions and a position of a group, and which of its kind is hit.
REQUESTS = [
    ("Metadata", 0),
    ("FindCoordinator", 0),
    ("FindCoordinator", 1),  # the group's
    ("InitProducerId", 0),
    ("AddPartitionsToTxn", 0),
    ("AddPartitionsToTxn", 1),
    ("AddOffsetsToTxn", 0),
    ("AddOffsetsToTxn", 1),
    ("Produce", 0),
    ("Produce", 1),
    ("Produce", 2),
    ("TxnOffsetCommit", 0),
    ("TxnOffsetCommit", 1),
    ("EndTxn", 0),
    ("EndTxn", 1),  # the abort
    ("EndTxn", 2),
]
OF_V1 = ("AddPartitionsToTxn", "AddOffsetsToTxn")

LOST: list[Action] = [DropReply(), CloseBefore()]
DOUBLED: list[Action] = [Duplicate(), Duplicate(after_requests=2)]
LATE: list[Action] = [DropRequest(), Delay(150), HoldReply()]  # over only after request.timeout.ms
ZOMBIES: list[Action] = [Hold(), Duplicate(on_release=True), Reorder()]
EVERY = (DropReply(), Duplicate())
"""These happen to every request, the others to the first of each kind."""

REQUEST_TIMEOUT_MS = 60


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world_of(request.param) as made:
        yield made


def cases(actions: list[Action]) -> pytest.MarkDecorator:
    """(profile, request, which, action); the first request of each kind, or all listed ones."""
    rows = [
        on_profile(profile, api, skip, action, id=f"-{action!r}-{api}-{skip}")
        for profile in PROFILES
        for action in actions
        for api, skip in REQUESTS
        if (skip == 0 or action in EVERY) and (profile is Profile.KAFKA_3_9 or api not in OF_V1)
        if not _is_indistinguishable(profile, api, action)
    ]
    return pytest.mark.parametrize(("world", "api", "skip", "action"), rows, indirect=["world"])


def _is_indistinguishable(profile: Profile, api: str, action: Action) -> bool:
    """Whether Kafka takes a late request for a new one, which no client can prevent; tested separately below.

    An InitProducerId fences the present owner. Before KIP-890, all transactions of a producer share an epoch. So a late
    copy of an acknowledged EndTxn ends the next transaction, and a late copy of an acknowledged batch may cost it,
    because the next batch seems out of order. Of an unacknowledged request the client knows, and raises the epoch
    (tests/producer/test_late_requests.py).
    """
    is_copied = isinstance(action, Duplicate | Reorder)
    of_v1 = ("EndTxn", "Produce") if action == Duplicate(after_requests=2) else ("EndTxn",)
    is_late = is_copied or isinstance(action, Delay)
    return (is_late and api == "InitProducerId") or (is_copied and api in of_v1 and profile is Profile.KAFKA_3_9)


def three_transactions(world: World, producer: Producer) -> None:
    """Run three transactions: commit, abort, commit."""
    producer.init_transactions()
    for number in range(3):
        producer.begin_transaction()
        left = producer.send("orders", f"{number} left", partition=0)
        right = producer.send("orders", f"{number} right", partition=1)
        producer.send_offsets_to_transaction({TopicPartition("inputs", 0): 10 * (number + 1)}, GROUP)
        if number == 1:
            left.result(60)
            right.result(60)
            producer.abort_transaction()
        else:
            world.commit(producer)


def assert_all_is_well(world: World) -> None:
    assert world.committed() == ["0 left", "2 left", "0 right", "2 right"]
    assert world.offset() == 30
    assert world.nothing_is_open()


@cases(LOST + DOUBLED)
def test_a_request_or_its_response_is_lost_or_doubled(world: World, api: str, skip: int, action: Action) -> None:
    fault = world.fault(api, action, skip=skip)
    three_transactions(world, world.producer())
    assert fault.hits == 1
    assert_all_is_well(world)


@cases(LATE)
def test_an_answer_that_comes_too_late(world: World, api: str, skip: int, action: Action) -> None:
    fault = world.fault(api, action, skip=skip)
    three_transactions(world, world.producer(request_timeout_ms=REQUEST_TIMEOUT_MS))
    assert fault.hits == 1
    assert_all_is_well(world)


@cases(ZOMBIES)
def test_a_request_that_is_applied_when_everything_is_over(world: World, api: str, skip: int, action: Action) -> None:
    """The request was given up and sent again, or doubled on its way; then it arrives, and must have no effect."""
    fault = world.fault(api, action, skip=skip)
    producer = world.producer(request_timeout_ms=REQUEST_TIMEOUT_MS)
    three_transactions(world, producer)
    fault.release()
    assert_all_is_well(world)
    if api != "InitProducerId":  # a late one of these fences
        world.run(producer, "last")
        assert world.committed() == ["0 left", "2 left", "last", "0 right", "2 right"]


@pytest.mark.parametrize("world", list(map(on_profile, PROFILES)), indirect=True)
def test_a_late_initialisation_fences_its_own_producer_and_the_error_says_so(world: World) -> None:
    """Kafka cannot tell it from a newer producer. The open transaction is not committed, and the next one goes on."""
    zombie = world.fault("InitProducerId", Duplicate(on_release=True))
    producer = world.ready()
    world.run(producer, "before")
    zombie.wait_held(1)
    producer.begin_transaction()
    producer.send("orders", "fenced").result(60)
    zombie.release()
    zombie.wait_unsent(1)
    with pytest.raises(FatalError):
        world.commit(producer)
    world.run(world.ready(), "after")
    assert world.committed() == ["before", "after"]
    assert world.nothing_is_open()
