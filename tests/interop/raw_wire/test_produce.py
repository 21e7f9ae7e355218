"""Produce in and around transactions, and its effect on readers, the same on both brokers."""

from __future__ import annotations

import pytest

from tests.interop.conftest import every_broker
from tests.interop.wire import (
    EARLIEST,
    NO_IDENTITY,
    READ_COMMITTED,
    ActiveProducer,
    Code,
    Identity,
    Produced,
    Wire,
    record_batch,
)

MARKER_COMMIT = (b"\x00\x00\x00\x00\x00\x00",)
LAST_SEQUENCE = 2147483647


# -- verification (KIP-890 part 1) and implicit adds (part 2)


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        (3, Code.INVALID_TXN_STATE),
        (9, Code.INVALID_TXN_STATE),
        (10, Code.INVALID_TXN_STATE),
        (11, Code.TRANSACTION_ABORTABLE),
    ],
)
def test_produce_to_a_partition_that_was_not_added(
    wire: Wire, transactional_id: str, topic: str, version: int, refused: Code
) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0, version=version) == Produced(refused, -1)
    assert wire.describe(transactional_id).state == "Empty"
    assert wire.add(transactional_id, identity, (topic, 0)) == [Code.NONE]
    assert wire.produce(transactional_id, identity, topic, 0, version=version) == Produced(Code.NONE, 0)


def test_produce_adds_the_partition(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0, b"a", b"b") == Produced(Code.NONE, 0)
    assert wire.produce(transactional_id, identity, topic, 2) == Produced(Code.NONE, 2)
    described = wire.describe(transactional_id)
    assert (described.state, described.topics) == ("Ongoing", {topic: [0]})
    error, producers = wire.producers(topic)
    assert error == Code.NONE
    assert producers == {identity.producer_id: ActiveProducer(identity, 2, -1, 0)}


@pytest.mark.parametrize("version", [11, 12])
def test_produce_with_another_epoch(wire: Wire, transactional_id: str, topic: str, version: int) -> None:
    zombie = wire.init_ok(transactional_id)
    identity = wire.init_ok(transactional_id)
    # Produce never says PRODUCER_FENCED: old clients would not know it (KAFKA-9911)
    fenced = Produced(Code.INVALID_PRODUCER_EPOCH, -1)
    assert wire.produce(transactional_id, zombie, topic, 0, version=version) == fenced
    assert wire.produce(transactional_id, identity.bumped(), topic, 0, version=version) == fenced
    assert wire.describe(transactional_id).state == "Empty"


@pytest.mark.parametrize("version", [11, 12])
def test_produce_with_unknown_ids(wire: Wire, transactional_id: str, topic: str, version: int) -> None:
    identity = wire.init_ok(transactional_id)
    unmapped = Produced(Code.INVALID_PRODUCER_ID_MAPPING, -1)
    assert wire.produce("nobody-has-this-id", identity, topic, 0, version=version) == unmapped
    assert wire.produce(None, identity, topic, 0, version=version).error == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_zombie_writes_during_the_transaction_of_its_successor(wire: Wire, transactional_id: str, topic: str) -> None:
    zombie = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, zombie, topic, 0).error == Code.NONE
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    assert wire.produce(transactional_id, zombie, topic, 1).error == Code.INVALID_PRODUCER_EPOCH
    assert wire.end_settled(transactional_id, identity, commit=True).error == Code.NONE


def test_epoch_from_the_future_while_a_transaction_is_open(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.add(transactional_id, identity, (topic, 0)) == [Code.NONE]
    assert wire.produce(transactional_id, identity, topic, 0, version=11).error == Code.NONE
    future = wire.produce(transactional_id, identity.bumped(), topic, 0, version=11)
    assert future.error == Code.INVALID_PRODUCER_EPOCH
    # its sequence is remembered as one that must come first, and it never will
    refused = wire.produce(transactional_id, identity, topic, 1, version=11)
    assert refused.error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("version", [11, 12])
def test_an_epoch_that_the_partition_knows_to_be_over(
    wire: Wire, transactional_id: str, topic: str, version: int
) -> None:
    """The coordinator is not asked, for any transactional id (KAFKA-19690; Kafka 3.9 asks it)."""
    zombie = wire.init_ok(transactional_id)
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    fenced, unmapped = Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING
    assert wire.produce("nobody", zombie, topic, 0, version=version).error == fenced
    # and so its sequence is not remembered
    assert wire.produce(transactional_id, identity, topic, 1, version=version).error == Code.NONE
    assert wire.end_settled(transactional_id, identity, commit=False).error == Code.NONE
    for over in (zombie, identity):
        assert wire.produce("nobody", over, topic, 0, version=version).error == fenced
    assert wire.produce("nobody", identity.bumped(), topic, 0, version=version).error == unmapped


def test_late_produce_of_an_ended_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    assert wire.end_settled(transactional_id, identity, commit=True).error == Code.NONE
    assert wire.produce(transactional_id, identity, topic, 1).error == Code.INVALID_PRODUCER_EPOCH


def test_late_produce_of_an_old_client(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.add(transactional_id, identity, (topic, 0)) == [Code.NONE]
    assert wire.produce(transactional_id, identity, topic, 0, version=11).error == Code.NONE
    assert wire.end_settled(transactional_id, identity, commit=True, version=4).error == Code.NONE
    # the epoch is still good, but the partition is not in any transaction
    assert wire.produce(transactional_id, identity, topic, 1, version=11).error == Code.TRANSACTION_ABORTABLE
    assert wire.produce(transactional_id, identity, topic, 1, version=10).error == Code.INVALID_TXN_STATE


def test_a_batch_outside_the_transaction_of_its_producer(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    assert wire.produce(None, identity, topic, 1, transactional=False).error == Code.INVALID_TXN_STATE


# -- sequences


def test_sequences(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0, b"a", b"b") == Produced(Code.NONE, 0)
    assert wire.produce(transactional_id, identity, topic, 0, b"a", b"b") == Produced(Code.NONE, 0)
    assert wire.produce(transactional_id, identity, topic, 3).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert wire.produce(transactional_id, identity, topic, 1).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert wire.produce(transactional_id, identity, topic, 2) == Produced(Code.NONE, 2)
    assert wire.list_offsets(topic) == 3


def idempotent(wire: Wire, identity: Identity, topic: str, sequence: int, *values: bytes) -> Produced:
    """Produce outside of transactions, in a version that Kafka 3.9 serves too."""
    return wire.produce(None, identity, topic, sequence, *values, transactional=False, version=11)


@every_broker
def test_duplicates_are_recognised_among_the_last_five_batches(wire: Wire, topic: str) -> None:
    identity = wire.init_ok(None)
    for sequence in range(6):
        assert idempotent(wire, identity, topic, sequence) == Produced(Code.NONE, sequence)
    assert idempotent(wire, identity, topic, 7).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    for sequence in range(1, 6):
        assert idempotent(wire, identity, topic, sequence) == Produced(Code.NONE, sequence)
    assert idempotent(wire, identity, topic, 0).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert wire.list_offsets(topic) == 6


@every_broker
def test_sequences_wrap_around(wire: Wire, topic: str) -> None:
    identity = wire.init_ok(None)
    for sequence, values in ((LAST_SEQUENCE - 1, (b"a",)), (LAST_SEQUENCE, (b"b", b"c")), (1, (b"d",))):
        assert idempotent(wire, identity, topic, sequence, *values).error == Code.NONE
    assert idempotent(wire, identity, topic, LAST_SEQUENCE, b"b", b"c") == Produced(Code.NONE, 1)
    assert idempotent(wire, identity, topic, 3).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


@every_broker
def test_idempotent_producer_with_another_epoch(wire: Wire, topic: str) -> None:
    """A higher one begins at sequence 0, and forgets the batches before."""
    identity = wire.init_ok(None).bumped()
    assert idempotent(wire, identity, topic, 0) == Produced(Code.NONE, 0)
    assert idempotent(wire, identity.bumped(-1), topic, 0).error == Code.INVALID_PRODUCER_EPOCH
    assert idempotent(wire, identity.bumped(), topic, 5).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    for _ in range(2):
        assert idempotent(wire, identity.bumped(), topic, 0) == Produced(Code.NONE, 1)
    assert idempotent(wire, identity, topic, 1).error == Code.INVALID_PRODUCER_EPOCH


@every_broker
@pytest.mark.parametrize("transactional", [True, False])
def test_first_sequence_of_an_old_client(wire: Wire, transactional_id: str, topic: str, transactional: bool) -> None:
    identity = wire.init_ok(transactional_id if transactional else None)
    if transactional:
        assert wire.add(transactional_id, identity, (topic, 0)) == [Code.NONE]
        assert wire.produce(transactional_id, identity, topic, 7, version=11).error == Code.NONE
    else:
        assert idempotent(wire, identity, topic, 7).error == Code.NONE


def test_first_sequence_of_a_producer(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 7).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_every_transaction_begins_at_sequence_0(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    identity = wire.end_settled(transactional_id, identity, commit=True).identity
    assert wire.produce(transactional_id, identity, topic, 1).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE


# -- refused requests


def test_acks(wire: Wire, topic: str) -> None:
    assert wire.produce(None, NO_IDENTITY, topic, -1, transactional=False, acks=1) == Produced(Code.NONE, 0)
    assert wire.produce(None, NO_IDENTITY, topic, -1, transactional=False, acks=2).error == Code.INVALID_REQUIRED_ACKS


def test_unknown_partitions(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.produce(transactional_id, identity, topic, 0, partition=9).error == unknown
    assert wire.produce(transactional_id, identity, "no-such-topic", 0).error == unknown
    assert wire.describe(transactional_id).state == "Empty"


def test_internal_topic_in_a_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    """It is added before it is refused, as with any other error of the append."""
    identity = wire.init_ok(transactional_id)
    batch = record_batch([b"v"], identity, 0, transactional=True)
    writes = ((("__transaction_state", 0), batch), ((topic, 0), batch))
    assert wire.produce_to(transactional_id, *writes) == [Code.INVALID_TOPIC_EXCEPTION, Code.NONE]
    assert wire.describe(transactional_id).topics == {topic: [0], "__transaction_state": [0]}
    assert wire.end_settled(transactional_id, identity, commit=True).error == Code.NONE


@pytest.mark.parametrize("acks", [2, -2])
def test_other_acks_in_a_transaction(wire: Wire, transactional_id: str, topic: str, acks: int) -> None:
    """The partition is added before the request is refused."""
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0, acks=acks).error == Code.INVALID_REQUIRED_ACKS
    assert wire.describe(transactional_id).topics == {topic: [0]}


def test_bytes_that_are_no_batch_do_not_begin_a_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    followed = record_batch([b"v"], identity, 0, transactional=True) + b"\0" * 17
    assert wire.produce_bytes(transactional_id, topic, followed).error == Code.CORRUPT_MESSAGE
    assert wire.describe(transactional_id).state == "Empty"


def test_broken_batches(wire: Wire, topic: str) -> None:
    whole = record_batch([b"value"])
    assert wire.produce_bytes(None, topic, whole[:-1] + b"X").error == Code.CORRUPT_MESSAGE
    assert wire.produce_bytes(None, topic, whole).error == Code.NONE
    assert wire.list_offsets(topic) == 1


# -- readers


def test_open_transaction_holds_the_last_stable_offset(wire: Wire, transactional_id: str, topic: str) -> None:
    assert wire.produce(None, NO_IDENTITY, topic, -1, b"plain", transactional=False) == Produced(Code.NONE, 0)
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0, b"a", b"b") == Produced(Code.NONE, 1)
    assert wire.produce(None, NO_IDENTITY, topic, -1, b"later", transactional=False) == Produced(Code.NONE, 3)
    assert (wire.list_offsets(topic), wire.list_offsets(topic, isolation=READ_COMMITTED)) == (4, 1)

    everything = wire.fetch(topic)
    assert (everything.high_watermark, everything.last_stable_offset, everything.aborted) == (4, 1, None)
    assert [batch.values for batch in everything.batches] == [(b"plain",), (b"a", b"b"), (b"later",)]
    stable = wire.fetch(topic, isolation=READ_COMMITTED)
    assert (stable.high_watermark, stable.last_stable_offset, stable.aborted) == (4, 1, ())
    assert [batch.values for batch in stable.batches] == [(b"plain",)]

    assert wire.end_settled(transactional_id, identity, commit=True).error == Code.NONE
    assert (wire.list_offsets(topic), wire.list_offsets(topic, isolation=READ_COMMITTED)) == (5, 5)
    stable = wire.fetch(topic, isolation=READ_COMMITTED)
    assert (stable.last_stable_offset, stable.aborted) == (5, ())
    assert [batch.values for batch in stable.batches] == [(b"plain",), (b"a", b"b"), (b"later",), MARKER_COMMIT]
    marker = stable.batches[-1]
    assert (marker.base_offset, marker.identity) == (4, identity.bumped())
    assert (marker.is_control, marker.is_transactional) == (True, True)


def test_aborted_transactions_are_named(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    for outcome in (False, True, False):
        assert wire.produce_settled(transactional_id, identity, topic, 0).error == Code.NONE
        identity = wire.end_settled(transactional_id, identity, commit=outcome).identity
    read = wire.fetch(topic, isolation=READ_COMMITTED)
    assert set(read.aborted or ()) == {(identity.producer_id, 0), (identity.producer_id, 4)}
    assert read.last_stable_offset == 6
    from_the_second = wire.fetch(topic, 2, isolation=READ_COMMITTED)
    assert from_the_second.aborted == ((identity.producer_id, 4),)
    assert not wire.fetch(topic, 6, isolation=READ_COMMITTED).aborted


def test_two_open_transactions(wire: Wire, transactional_id: str, topic: str) -> None:
    other_id = f"{transactional_id}-other"
    first, second = wire.init_ok(transactional_id), wire.init_ok(other_id)
    assert wire.produce(transactional_id, first, topic, 0) == Produced(Code.NONE, 0)
    assert wire.produce(other_id, second, topic, 0) == Produced(Code.NONE, 1)
    assert wire.end_settled(other_id, second, commit=True).error == Code.NONE
    assert wire.list_offsets(topic, isolation=READ_COMMITTED) == 0
    assert wire.end_settled(transactional_id, first, commit=False).error == Code.NONE
    assert wire.list_offsets(topic, isolation=READ_COMMITTED) == 4
    assert wire.fetch(topic, isolation=READ_COMMITTED).aborted == ((first.producer_id, 0),)


def test_list_offsets(wire: Wire, topic: str) -> None:
    for sent_at_ms in (1_000, 2_000, 3_000):
        assert wire.produce_bytes(None, topic, record_batch([b"v"], timestamp_ms=sent_at_ms)).error == Code.NONE
    assert wire.list_offsets(topic, EARLIEST) == 0
    assert wire.list_offsets(topic, 1_500) == 1
    assert wire.list_offsets(topic, 2_000) == 1
    assert wire.list_offsets(topic, 3_001) == -1


def test_list_offsets_by_time_stops_at_the_last_stable_offset(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    assert wire.list_offsets(topic, 1) == 0
    assert wire.list_offsets(topic, 1, READ_COMMITTED) == -1
    assert wire.list_offsets(topic, EARLIEST, READ_COMMITTED) == 0


@pytest.mark.parametrize("version", range(4, 12))
def test_fetch_versions(wire: Wire, transactional_id: str, topic: str, version: int) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0, b"a").error == Code.NONE
    assert wire.end_settled(transactional_id, identity, commit=False).error == Code.NONE
    read = wire.fetch(topic, isolation=READ_COMMITTED, version=version)
    assert (read.high_watermark, read.last_stable_offset, read.aborted) == (2, 2, ((identity.producer_id, 0),))
    assert [batch.is_control for batch in read.batches] == [False, True]


@pytest.mark.parametrize("offset", [-1, 1])
def test_fetch_out_of_range(wire: Wire, topic: str, offset: int) -> None:
    assert wire.fetch(topic, offset).error == Code.OFFSET_OUT_OF_RANGE


def test_the_first_verification_shows_whether_a_client_bumps_its_epoch(
    wire: Wire, transactional_id: str, topic: str
) -> None:
    """A producer without state there then starts at any sequence, or at 0, with any later version."""
    identity = wire.init_ok(transactional_id)
    old = record_batch([b"v"], identity, 0, transactional=True)
    assert wire.produce_bytes(transactional_id, topic, old, version=11).error is Code.TRANSACTION_ABORTABLE
    bumped = wire.end_settled(transactional_id, identity, commit=False).identity
    late = record_batch([b"v"], bumped, 7, transactional=True)
    assert wire.produce_bytes(transactional_id, topic, late, version=12).error is Code.NONE


def test_an_old_request_of_a_client_that_bumps_its_epoch(wire: Wire, transactional_id: str, topic: str) -> None:
    wire.init_ok(transactional_id)
    identity = wire.init_ok(transactional_id)
    stale = record_batch([b"v"], Identity(identity.producer_id, 0), 0, transactional=True)
    assert wire.produce_bytes(transactional_id, topic, stale, version=12).error is Code.INVALID_PRODUCER_EPOCH
    plain = record_batch([b"v"], identity, 7)
    assert wire.produce_bytes(None, topic, plain, version=11).error is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
