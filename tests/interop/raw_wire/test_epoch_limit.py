"""The last epoch that a client may hold, the same on both brokers (KIP-890, KAFKA-20090)."""

from __future__ import annotations

from tests.interop.conftest import Broker
from tests.interop.wire import NO_IDENTITY, Code, End, Init, Wire, wait_for


def test_commit_at_the_last_epoch_changes_the_producer_id(
    broker: Broker, wire: Wire, transactional_id: str, topic: str
) -> None:
    last = broker.exhaust_epochs(wire, transactional_id)
    # old clients do not bump, so they can go on with it for ever
    assert wire.add(transactional_id, last, (topic, 0)) == [Code.NONE]
    assert wire.end_settled(transactional_id, last, commit=True, version=4) == End(Code.NONE)
    assert wire.describe(transactional_id).identity == last

    assert wire.produce(transactional_id, last, topic, 0).error == Code.NONE
    answer = wire.end_settled(transactional_id, last, commit=True)
    assert (answer.error, answer.identity.producer_epoch) == (Code.NONE, 0)
    assert answer.identity.producer_id != last.producer_id
    assert wire.describe(transactional_id).identity == answer.identity
    marker = wire.fetch(topic).batches[-1]
    assert (marker.is_control, marker.identity) == (True, last.bumped())

    # retries with the pair before the change are recognised; other epochs of the old id are not
    assert wire.end(transactional_id, last, commit=True) == answer
    assert wire.end(transactional_id, last, commit=False) == End(Code.INVALID_TXN_STATE)
    assert wire.end(transactional_id, last.bumped(-1), commit=True) == End(Code.INVALID_PRODUCER_ID_MAPPING)
    assert wire.produce(transactional_id, answer.identity, topic, 0).error == Code.NONE
    assert wire.end_settled(transactional_id, answer.identity, commit=True).identity == answer.identity.bumped()


def test_timeout_at_the_last_epoch_changes_the_producer_id(
    broker: Broker, wire: Wire, transactional_id: str, topic: str
) -> None:
    last = broker.exhaust_epochs(wire, transactional_id, timeout_ms=1)
    assert wire.produce(transactional_id, last, topic, 0).error == Code.NONE
    aborted = wait_for(lambda: wire.describe(transactional_id), lambda described: described.state == "CompleteAbort")
    assert aborted.identity.producer_epoch == 0
    assert aborted.identity.producer_id != last.producer_id
    assert wire.end(transactional_id, last, commit=False) == End(Code.NONE, aborted.identity)
    assert wire.init(transactional_id, last) == Init(Code.NONE, aborted.identity)


def test_initialisation_at_the_last_epoch(broker: Broker, wire: Wire, transactional_id: str) -> None:
    last = broker.exhaust_epochs(wire, transactional_id)
    assert wire.init(transactional_id, last.bumped(-1)) == Init(broker.facts.stale_epoch_at_the_limit, NO_IDENTITY)
    answer = wire.init(transactional_id, last)
    assert (answer.error, answer.identity.producer_epoch) == (Code.NONE, 0)
    assert answer.identity.producer_id != last.producer_id
    # the client did not get the response and asks again
    assert wire.init(transactional_id, last) == answer
