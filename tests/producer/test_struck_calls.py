"""An exception of a signal's handler at each place of a transactional call: the call can be repeated, or given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import pytest

from dualwrite.client import operations, producer_core
from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.client.transactions import manager
from dualwrite.client.transactions.states import ProducerState
from dualwrite.errors import IllegalStateError, InvalidTxnStateError
from dualwrite.guarantee import Tier
from dualwrite.prepared_state import PreparedTxnState
from tests.producer.tiers import World, every_tier, on
from tests.producer.tiers import world as world
from tests.support.strikes import KINDS, Strike, explained, strike

CALLS: Final = (producer_core.__file__, operations.__file__, manager.__file__.removesuffix("manager.py"))
GROUP: Final = ConsumerGroupMetadata("group")
_S = ProducerState


class Attempt:
    """One producer, and the one call that is struck."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.producer = world.producer(transactional_id=name)
        self.stored = PreparedTxnState()

    def begun(self, *, prepare: bool = False) -> None:
        self.producer.init_transactions()
        self.producer.begin_transaction()
        self.producer.send("orders", self.name, partition=0)
        self.producer.flush()
        if prepare:
            self.stored = self.producer.prepare_transaction()

    def found(self, *, commits: bool = True) -> None:
        """Find the transaction that an earlier producer has prepared; with `commits` the stored state names it."""
        prepared = self.world.prepared(self.name, self.name)
        self.stored = prepared if commits else PreparedTxnState()
        self.producer.init_transactions(keep_prepared_txn=True)


class Act(NamedTuple):
    """A call, the state that it leads to, and whether its transaction is committed then."""

    name: str
    before: Callable[[Attempt], object]
    call: Callable[[Attempt], object]
    ends: ProducerState
    is_committed: bool


def fenced_later(attempt: Attempt) -> None:
    attempt.found()
    attempt.producer.complete_before_fencing(attempt.stored)


ACTS: Final = (
    Act("init", lambda a: None, lambda a: a.producer.init_transactions(), _S.READY, False),
    Act(
        "init to keep", lambda a: None, lambda a: a.producer.init_transactions(keep_prepared_txn=True), _S.READY, False
    ),
    Act(
        "begin",
        lambda a: a.producer.init_transactions(),
        lambda a: a.producer.begin_transaction(),
        _S.IN_TRANSACTION,
        False,
    ),
    Act("prepare", Attempt.begun, lambda a: a.producer.prepare_transaction(), _S.PREPARED_TRANSACTION, False),
    Act("commit", Attempt.begun, lambda a: a.producer.commit_transaction(), _S.READY, True),
    Act("abort", Attempt.begun, lambda a: a.producer.abort_transaction(), _S.READY, False),
    Act(
        "complete", lambda a: a.begun(prepare=True), lambda a: a.producer.complete_transaction(a.stored), _S.READY, True
    ),
    Act("complete found", Attempt.found, lambda a: a.producer.complete_transaction(a.stored), _S.READY, True),
    Act(
        "complete by abort",
        lambda a: a.found(commits=False),
        lambda a: a.producer.complete_transaction(a.stored),
        _S.READY,
        False,
    ),
    Act("commit found", Attempt.found, lambda a: a.producer.commit_transaction(), _S.READY, True),
    Act("fence others", fenced_later, lambda a: a.producer.fence_others(), _S.READY, True),
    Act(
        "send offsets",
        Attempt.begun,
        lambda a: a.producer.send_offsets_to_transaction({TopicPartition("inputs", 0): 7}, GROUP),
        _S.IN_TRANSACTION,
        False,
    ),
)


def again(act: Act, attempt: Attempt) -> None:
    """Repeat a call; one that had ended is refused in the state that it leads to."""
    try:
        act.call(attempt)
    except (IllegalStateError, InvalidTxnStateError):
        assert attempt.producer.state is act.ends
    assert attempt.producer.state is act.ends


def finished(attempt: Attempt) -> bool:
    """Commit the transaction that is open, if there is one; return whether there was one."""
    producer = attempt.producer
    if producer.state is _S.PREPARED_TRANSACTION:
        producer.complete_transaction(producer.prepared_txn_state)
    elif producer.state is _S.IN_TRANSACTION:
        producer.commit_transaction()
    else:
        return False
    return True


def struck(world: World, act: Act) -> Iterator[Attempt]:
    """Strike the call at each place in turn, each time for another id."""
    counted = Attempt(world, "counted")
    act.before(counted)
    with Strike(inside=CALLS) as places:
        act.call(counted)
    counted.producer.close(timeout_s=60)
    world.ready(transactional_id="counted")
    for place in range(1, places.places + 1):
        attempt = Attempt(world, f"{act.name} {place}")
        act.before(attempt)
        with explained(strike(place, partial(act.call, attempt), KINDS[place % 2], CALLS)):
            yield attempt
            world.commit(attempt.producer, f"after {attempt.name}")
        attempt.producer.close(timeout_s=60)


@every_tier
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_a_struck_call_is_repeated(world: World, act: Act) -> None:
    expected = ["counted"] if act.is_committed else []
    for attempt in struck(world, act):
        again(act, attempt)
        was_open = finished(attempt)
        if act.is_committed or (was_open and act.name != "begin"):
            expected.append(attempt.name)
        expected.append(f"after {attempt.name}")
    assert sorted(world.committed()) == sorted(expected)


@every_tier
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_a_struck_call_is_given_up(world: World, act: Act) -> None:
    names = []
    for attempt in struck(world, act):
        names.append(attempt.name)
        attempt.producer.close(timeout_s=60)
        attempt.producer = world.ready(transactional_id=attempt.name)
    values = world.committed()
    assert len(values) == len(set(values))
    assert {f"after {name}" for name in names} <= set(values)
    assert act.is_committed or not set(names) & set(values)


@on(Tier.BOUNDED_V1)
def test_a_transaction_whose_begin_was_struck_is_two_epochs_after_the_one_before(world: World) -> None:
    """Otherwise a late request of that one would be taken for one of the next."""
    producer = world.ready()
    with Strike(inside=CALLS) as places:
        producer.begin_transaction()
    producer.abort_transaction()
    for place in range(1, places.places + 1):
        before = world.commit(producer, f"before {place}")
        with explained(strike(place, producer.begin_transaction, KINDS[place % 2], CALLS)):
            if producer.state is _S.READY:
                producer.begin_transaction()
            producer.send("orders", f"after {place}", partition=0)
            after = producer.prepare_transaction()
            assert after.producer_epoch == before.producer_epoch + 2
            producer.complete_transaction(after)
