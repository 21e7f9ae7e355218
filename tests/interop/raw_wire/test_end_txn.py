"""EndTxn and AddPartitionsToTxn, the same on both brokers (KIP-98, KIP-890)."""

from __future__ import annotations

import pytest

from tests.interop.conftest import Broker, every_broker
from tests.interop.wire import NO_IDENTITY, Code, End, Identity, Produced, Wire, wait_for

COMMIT, ABORT = True, False


# -- AddPartitionsToTxn


@every_broker
@pytest.mark.parametrize("version", range(4))
def test_add_partitions(wire: Wire, transactional_id: str, topic: str, version: int) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.add(transactional_id, identity, (topic, 0), version=version) == [Code.NONE]
    assert wire.add(transactional_id, identity, (topic, 0), version=version) == [Code.NONE]
    described = wire.describe(transactional_id)
    assert (described.state, described.topics, described.started) == ("Ongoing", {topic: [0]}, True)


@every_broker
@pytest.mark.parametrize(
    ("version", "fenced"),
    [(0, Code.INVALID_PRODUCER_EPOCH), (1, Code.INVALID_PRODUCER_EPOCH), (2, Code.PRODUCER_FENCED)],
)
@pytest.mark.parametrize("by", [-1, 1])
def test_add_partitions_with_another_epoch(
    wire: Wire, transactional_id: str, topic: str, version: int, fenced: Code, by: int
) -> None:
    wire.init_ok(transactional_id)
    identity = wire.init_ok(transactional_id)
    assert wire.add(transactional_id, identity.bumped(by), (topic, 0), version=version) == [fenced]


@every_broker
def test_add_partitions_refusals(wire: Wire, transactional_id: str, topic: str) -> None:
    assert wire.add(transactional_id, Identity(1, 0), (topic, 0)) == [Code.INVALID_PRODUCER_ID_MAPPING]
    identity = wire.init_ok(transactional_id)
    other_producer = Identity(identity.producer_id + 100_000, 0)
    assert wire.add(transactional_id, other_producer, (topic, 0)) == [Code.INVALID_PRODUCER_ID_MAPPING]
    assert wire.add("", identity, (topic, 0)) == [Code.INVALID_REQUEST]
    # one unknown partition, and none is added
    assert wire.add(transactional_id, identity, (topic, 0), (topic, 7), ("no-such-topic", 0)) == [
        Code.OPERATION_NOT_ATTEMPTED,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    refused = [Code.OPERATION_NOT_ATTEMPTED, Code.TOPIC_AUTHORIZATION_FAILED]
    assert wire.add(transactional_id, identity, (topic, 0), ("__transaction_state", 0)) == refused
    assert wire.describe(transactional_id).state == "Empty"


@every_broker
def test_add_partitions_of_brokers(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    partition = (topic, 0)
    assert wire.add_broker(transactional_id, identity, partition, verify_only=True) == Code.TRANSACTION_ABORTABLE
    assert wire.add_broker(transactional_id, identity, partition, verify_only=False) == Code.NONE
    assert wire.add_broker(transactional_id, identity, partition, verify_only=True) == Code.NONE
    for by in (-1, 1):
        other = identity.bumped(by)
        assert wire.add_broker(transactional_id, other, partition, verify_only=True) == Code.PRODUCER_FENCED
    other_producer = Identity(identity.producer_id + 100_000, 0)
    for name, pair in (("unknown", identity), (transactional_id, other_producer)):
        assert wire.add_broker(name, pair, partition, verify_only=True) == Code.INVALID_PRODUCER_ID_MAPPING
    assert wire.add_broker("", identity, partition, verify_only=True) == Code.INVALID_REQUEST


@every_broker
@pytest.mark.parametrize("version", range(5))
def test_add_offsets(wire: Wire, transactional_id: str, group: str, version: int) -> None:
    fenced = Code.INVALID_PRODUCER_EPOCH if version < 2 else Code.PRODUCER_FENCED
    wire.wait_for_coordinator(group, key_type=0)
    identity = wire.init_ok(transactional_id)
    assert wire.add_offsets(transactional_id, identity, group, version=version) == Code.NONE
    assert wire.add_offsets(transactional_id, identity, group, version=version) == Code.NONE
    assert list(wire.describe(transactional_id).topics) == ["__consumer_offsets"]
    assert wire.add_offsets(transactional_id, identity.bumped(), group, version=version) == fenced
    assert wire.add_offsets("unknown", identity, group, version=version) == Code.INVALID_PRODUCER_ID_MAPPING
    assert wire.add_offsets("", identity, group, version=version) == Code.INVALID_REQUEST


# -- EndTxn up to v4: strict epochs, no bump


@every_broker
@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_old_end_does_not_bump(wire: Wire, transactional_id: str, topic: str, version: int, commit: bool) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.add(transactional_id, identity, (topic, 0)) == [Code.NONE]
    assert wire.produce(transactional_id, identity, topic, 0, version=11) == Produced(Code.NONE, 0)
    assert wire.end_settled(transactional_id, identity, commit=commit, version=version) == End(Code.NONE)
    described = wire.describe(transactional_id)
    assert (described.state, described.identity) == ("CompleteCommit" if commit else "CompleteAbort", identity)
    # replay, and the opposite
    assert wire.end(transactional_id, identity, commit=commit, version=version) == End(Code.NONE)
    assert wire.end(transactional_id, identity, commit=not commit, version=version) == End(Code.INVALID_TXN_STATE)
    fenced = Code.INVALID_PRODUCER_EPOCH if version < 2 else Code.PRODUCER_FENCED
    assert wire.end(transactional_id, identity.bumped(), commit=commit, version=version) == End(fenced)
    # the next transaction goes on with the same epoch and the next sequence
    assert wire.produce(transactional_id, identity, topic, 1, version=11).error == Code.TRANSACTION_ABORTABLE
    assert wire.add(transactional_id, identity, (topic, 0)) == [Code.NONE]
    assert wire.produce(transactional_id, identity, topic, 1, version=11) == Produced(Code.NONE, 2)
    assert wire.end_settled(transactional_id, identity, commit=commit, version=version) == End(Code.NONE)


@every_broker
def test_end_of_unknown_ids(broker: Broker, wire: Wire, transactional_id: str) -> None:
    unmapped, versions = End(Code.INVALID_PRODUCER_ID_MAPPING), range(5 if "3.9" in broker.name else 6)
    for version in versions:
        assert wire.end(transactional_id, Identity(1, 0), commit=COMMIT, version=version) == unmapped
    identity = wire.init_ok(transactional_id)
    for version in versions:
        for other in (Identity(identity.producer_id + 100_000, 0), NO_IDENTITY):
            assert wire.end(transactional_id, other, commit=COMMIT, version=version) == unmapped
        assert wire.end("", identity, commit=COMMIT, version=version) == End(Code.INVALID_REQUEST)


@every_broker
def test_old_end_without_a_transaction(wire: Wire, transactional_id: str) -> None:
    identity = wire.init_ok(transactional_id)
    for version in range(5):
        for commit in (COMMIT, ABORT):
            assert wire.end(transactional_id, identity, commit=commit, version=version) == End(Code.INVALID_TXN_STATE)


def test_old_end_of_a_transaction_opened_by_produce(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0, version=12).error == Code.NONE
    assert wire.end_settled(transactional_id, identity, commit=COMMIT, version=4) == End(Code.NONE)
    assert wire.describe(transactional_id).identity == identity


# -- EndTxn v5: every transaction has an epoch of its own (TV2)


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_end_bumps_the_epoch(wire: Wire, transactional_id: str, topic: str, commit: bool) -> None:
    identity = wire.init_ok(transactional_id)
    for _ in range(3):
        assert wire.produce_settled(transactional_id, identity, topic, 0).error == Code.NONE
        answer = wire.end_settled(transactional_id, identity, commit=commit)
        assert answer == End(Code.NONE, identity.bumped())
        # the same request again: its response was lost
        assert wire.end(transactional_id, identity, commit=commit) == answer
        identity = answer.identity
    assert wire.describe(transactional_id).state == ("CompleteCommit" if commit else "CompleteAbort")


def test_after_a_commit(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    current = wire.end_settled(transactional_id, identity, commit=COMMIT).identity
    assert wire.end(transactional_id, identity, commit=ABORT) == End(Code.INVALID_TXN_STATE)
    assert wire.end(transactional_id, current, commit=COMMIT) == End(Code.INVALID_TXN_STATE)
    assert wire.end(transactional_id, current.bumped(), commit=COMMIT) == End(Code.PRODUCER_FENCED)
    # an abort without a transaction is allowed and bumps: a client does so after an error (KIP-890)
    assert wire.end_settled(transactional_id, current, commit=ABORT) == End(Code.NONE, current.bumped())
    assert wire.describe(transactional_id).state == "CompleteAbort"


def test_after_an_abort(broker: Broker, wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    current = wire.end_settled(transactional_id, identity, commit=ABORT).identity
    assert wire.end(transactional_id, identity, commit=COMMIT) == End(broker.facts.commit_after_abort)
    assert wire.end(transactional_id, current, commit=COMMIT) == End(Code.INVALID_TXN_STATE)
    assert wire.end_settled(transactional_id, current, commit=ABORT) == End(Code.NONE, current.bumped())


def test_epoch_before_in_releases(released_kafka: Broker, transactional_id: str) -> None:
    """Once nothing is open, releases take it for a retry, though no version 5 request ended a transaction."""
    topic = f"{transactional_id}-topic"
    with Wire(released_kafka.bootstrap_servers) as wire:
        wire.create_topic(topic)
        wire.wait_for_coordinator(transactional_id)
        wire.init_ok(transactional_id)
        identity = wire.init_ok(transactional_id)
        assert wire.add(transactional_id, identity, (topic, 0)) == [Code.NONE]
        assert wire.end(transactional_id, identity.bumped(-1), commit=COMMIT) == End(Code.PRODUCER_FENCED)
        assert wire.end_settled(transactional_id, identity, commit=COMMIT, version=4) == End(Code.NONE)
        assert wire.end(transactional_id, identity.bumped(-1), commit=COMMIT) == End(Code.NONE, identity)
        assert wire.end(transactional_id, identity.bumped(-1), commit=ABORT) == End(Code.INVALID_TXN_STATE)


def test_end_without_a_transaction(wire: Wire, transactional_id: str) -> None:
    wire.init_ok(transactional_id)
    identity = wire.init_ok(transactional_id)
    assert wire.end(transactional_id, identity, commit=COMMIT) == End(Code.INVALID_TXN_STATE)
    assert wire.end(transactional_id, identity.bumped(-1), commit=COMMIT) == End(Code.PRODUCER_FENCED)
    assert wire.end(transactional_id, identity.bumped(-1), commit=ABORT) == End(Code.PRODUCER_FENCED)
    assert wire.end_settled(transactional_id, identity, commit=ABORT) == End(Code.NONE, identity.bumped())
    described = wire.describe(transactional_id)
    assert (described.state, described.identity, described.topics) == ("CompleteAbort", identity.bumped(), {})


def test_wrong_epochs_on_the_open_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    wire.init_ok(transactional_id)
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    for commit in (COMMIT, ABORT):
        for by in (-1, 1):
            assert wire.end(transactional_id, identity.bumped(by), commit=commit) == End(Code.PRODUCER_FENCED)
    assert wire.end_settled(transactional_id, identity, commit=COMMIT).error == Code.NONE


def test_end_from_a_connection_that_never_initialised(
    wire: Wire, broker_wire: Wire, transactional_id: str, topic: str
) -> None:
    """Recovery with a stored pair, as tier 2 of the design and Flink do it."""
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    wire.close()
    answer = End(Code.NONE, identity.bumped())
    assert broker_wire.end_settled(transactional_id, identity, commit=COMMIT) == answer
    assert broker_wire.end(transactional_id, identity, commit=COMMIT) == answer


# -- the server's own abort


def test_transaction_timeout(broker: Broker, wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id, timeout_ms=1)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    aborted = wait_for(lambda: wire.describe(transactional_id), lambda described: described.state == "CompleteAbort")
    assert aborted.identity == identity.bumped()
    assert wire.produce(transactional_id, identity, topic, 1).error == Code.INVALID_PRODUCER_EPOCH
    assert wire.add(transactional_id, identity, (topic, 0)) == [Code.PRODUCER_FENCED]
    assert wire.end(transactional_id, identity, commit=COMMIT) == End(broker.facts.commit_after_abort)
    # aborting an aborted transaction is fine, and gives the client the next epoch
    assert wire.end(transactional_id, identity, commit=ABORT) == End(Code.NONE, identity.bumped())
    assert wire.produce(transactional_id, identity.bumped(), topic, 0).error == Code.NONE


@every_broker
def test_transaction_timeout_seen_by_old_clients(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id, timeout_ms=1)
    assert wire.add(transactional_id, identity, (topic, 0)) == [Code.NONE]
    wait_for(lambda: wire.describe(transactional_id), lambda described: described.state == "CompleteAbort")
    assert wire.describe(transactional_id).identity == identity.bumped()
    assert wire.end(transactional_id, identity, commit=COMMIT, version=4) == End(Code.PRODUCER_FENCED)
    assert wire.end(transactional_id, identity, commit=ABORT, version=1) == End(Code.INVALID_PRODUCER_EPOCH)
    assert wire.add(transactional_id, identity, (topic, 0)) == [Code.PRODUCER_FENCED]
