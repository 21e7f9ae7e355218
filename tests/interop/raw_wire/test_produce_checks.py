"""Refusals of Produce, their order, and their effects: the same on every broker, old and new.

Requests of v11, which all of them serve, unless a test says otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.util import calc_crc32c

from tests.interop.conftest import Broker, every_broker
from tests.interop.wire import GROUP, NO_IDENTITY, Code, ConnectionClosedError, Identity, Wire, record_batch
from tests.support.names import next_name

OLD = 11
PLAIN = record_batch([b"value"])
NO_BATCH = b"\0" * 17
"""As long as it takes to see that it is corrupt: its length is 0."""
INTERNAL = ["__transaction_state", "__consumer_offsets"]
NONE = Code.NONE


pytestmark = every_broker


@pytest.fixture
def identity(wire: Wire, transactional_id: str, topic: str) -> Identity:
    """An identity whose transaction has the topic."""
    identity = wire.init_ok(transactional_id)
    assert wire.add(transactional_id, identity, (topic, 0)) == [NONE]
    return identity


@pytest.fixture
def other(wire: Wire) -> str:
    """Another new topic."""
    name = next_name("topic")
    wire.create_topic(name)
    return name


def written(identity: Identity, sequence: int = 0) -> bytes:
    """A batch of a transaction."""
    return record_batch([b"v"], identity, sequence, transactional=True)


def patched(batch: bytes, offset: int, layout: str, value: int) -> bytes:
    """The batch with another value in its header, and the checksum that belongs to it."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, offset, value)
    struct.pack_into(">I", changed, 17, calc_crc32c(bytes(changed[21:])))
    return bytes(changed)


# -- internal topics


@pytest.mark.parametrize("name", INTERNAL)
def test_internal_topics_are_refused(wire: Wire, topic: str, group: str, name: str) -> None:
    wire.wait_for_coordinator(group, GROUP)
    before = wire.list_offsets(name)
    codes = wire.produce_to(None, ((name, 0), PLAIN), ((topic, 0), PLAIN), version=OLD)
    assert codes == [Code.INVALID_TOPIC_EXCEPTION, NONE]
    assert wire.list_offsets(name) == before


@pytest.mark.parametrize("name", INTERNAL)
@pytest.mark.parametrize("key", [b"\xff\xff", None])
def test_records_that_the_admin_client_may_write(wire: Wire, group: str, name: str, key: bytes | None) -> None:
    """Kafka exempts the client id of its own tools; it ignores a key of an unknown version."""
    wire.wait_for_coordinator(group, GROUP)
    batch = PLAIN if key is None else keyed(key)
    codes = wire.produce_to(None, ((name, 0), batch), version=OLD, client_id="__admin_client")
    assert codes == [Code.INVALID_RECORD if key is None else NONE]


def keyed(key: bytes) -> bytes:
    """A batch of one record with this key."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    builder.append(0, 1_000, key, b"value", [])
    return bytes(builder.build())


@pytest.mark.parametrize("name", INTERNAL)
def test_internal_topics_without_a_response(broker: Broker, group: str, name: str) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.wait_for_coordinator(group, GROUP)
        with pytest.raises(ConnectionClosedError):
            wire.produce_to(None, ((name, 0), PLAIN), version=OLD, acks=0)


def test_internal_topic_in_a_transaction(wire: Wire, transactional_id: str, topic: str, identity: Identity) -> None:
    internal = ("__transaction_state", 0)
    assert wire.add(transactional_id, identity, internal) == [Code.TOPIC_AUTHORIZATION_FAILED]
    writes = ((internal, written(identity)), ((topic, 0), written(identity)))
    assert wire.produce_to(transactional_id, *writes, version=OLD) == [Code.TRANSACTION_ABORTABLE, NONE]


@pytest.mark.parametrize(
    ("records", "acks", "partition", "code"),
    [
        (b"junk", -1, 0, Code.INVALID_RECORD),
        (PLAIN, 2, 0, Code.INVALID_REQUIRED_ACKS),
        (PLAIN, -1, 99, Code.UNKNOWN_TOPIC_OR_PARTITION),
    ],
    ids=["no batch", "acks", "partition"],
)
def test_checks_before_that_of_internal_topics(
    wire: Wire, records: bytes, acks: int, partition: int, code: Code
) -> None:
    name = "__transaction_state"
    assert wire.produce_to(None, ((name, partition), records), acks=acks, version=OLD) == [code]


# -- framing


@pytest.mark.parametrize(
    "trailing", [b"\0", b"x" * 5, b"x" * 11, b"x" * 12, PLAIN[:16], PLAIN[:61], PLAIN[:-1]], ids=len
)
def test_a_batch_cut_off_at_the_end_is_not_read(wire: Wire, topic: str, trailing: bytes) -> None:
    assert wire.produce_bytes(None, topic, PLAIN + trailing, version=OLD).error == NONE
    assert wire.fetch_bytes(topic, 0)[61:] == PLAIN[61:]


@pytest.mark.parametrize("trailing", [b"\0" * 12, NO_BATCH, b"\0" * 61, b"x" * 17, b"\xff" * 20], ids=len)
def test_a_corrupt_batch_behind_a_valid_one(wire: Wire, topic: str, other: str, trailing: bytes) -> None:
    codes = wire.produce_to(None, ((topic, 0), PLAIN + trailing), ((other, 0), PLAIN), version=OLD)
    assert codes == [Code.CORRUPT_MESSAGE, NONE]


@pytest.mark.parametrize("length", [0, 1, 11, 12, 16, 17, 60, len(PLAIN) - 1])
def test_less_than_a_batch(wire: Wire, topic: str, length: int) -> None:
    assert wire.produce_bytes(None, topic, PLAIN[:length], version=OLD).error == Code.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats(wire: Wire, topic: str, magic: int) -> None:
    records = PLAIN[:16] + bytes([magic]) + PLAIN[17:]
    assert wire.produce_bytes(None, topic, records, version=OLD).error == Code.INVALID_RECORD
    assert wire.produce_bytes(None, next_name("none"), records, version=OLD).error == Code.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("is_first", [True, False])
def test_a_corrupt_first_batch_fails_the_request(wire: Wire, topic: str, other: str, is_first: bool) -> None:
    writes = [((topic, 0), NO_BATCH), ((other, 0), PLAIN)]
    codes = wire.produce_to(None, *(writes if is_first else reversed(writes)), version=OLD)
    assert codes == [Code.CORRUPT_MESSAGE] * 2
    assert wire.list_offsets(other) == 0


def test_no_further_than_to_the_first_batch_of_a_transaction(
    wire: Wire, transactional_id: str, topic: str, other: str, identity: Identity
) -> None:
    good, bad = ((topic, 0), written(identity)), ((other, 0), NO_BATCH)
    assert wire.produce_to(transactional_id, bad, good, version=OLD) == [Code.CORRUPT_MESSAGE] * 2
    assert wire.produce_to(transactional_id, good, bad, version=OLD) == [NONE, Code.CORRUPT_MESSAGE]


# -- order


def test_two_batches(wire: Wire, transactional_id: str, topic: str, other: str, identity: Identity) -> None:
    two, none = PLAIN * 2, next_name("none")
    of_a_transaction = written(identity) + written(identity, 1)

    def produce(name: str, records: bytes, *, id: str | None = None, acks: int = -1) -> Sequence[Code | int]:
        return wire.produce_to(id, ((name, 0), records), ((other, 0), PLAIN), acks=acks, version=OLD)

    forbidden, acks = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.INVALID_REQUIRED_ACKS
    assert produce(topic, two) == [Code.INVALID_RECORD, NONE]
    assert produce(topic, two, acks=2) == [Code.INVALID_RECORD, acks]
    assert produce(none, two) == [Code.UNKNOWN_TOPIC_OR_PARTITION, NONE]
    assert produce(none, two, acks=2) == [Code.UNKNOWN_TOPIC_OR_PARTITION, acks]
    assert produce(none, PLAIN, acks=2) == [Code.UNKNOWN_TOPIC_OR_PARTITION, acks]
    assert produce(topic, of_a_transaction) == [forbidden, forbidden]
    assert produce(topic, of_a_transaction, acks=2) == [forbidden, forbidden]
    assert produce(none, of_a_transaction, id=transactional_id) == [Code.UNKNOWN_TOPIC_OR_PARTITION, NONE]
    assert produce(topic, of_a_transaction, id=transactional_id) == [Code.INVALID_RECORD, NONE]


@pytest.mark.parametrize("acks", [2, -2])
def test_other_acks_in_a_transaction(
    wire: Wire, transactional_id: str, topic: str, identity: Identity, acks: int
) -> None:
    """They are refused after the verification, by which the first sequence is known already."""
    refused = wire.produce(transactional_id, identity, topic, 0, version=OLD, acks=acks)
    assert refused.error == Code.INVALID_REQUIRED_ACKS
    assert wire.produce(transactional_id, identity, topic, 1, version=OLD).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert wire.produce(transactional_id, identity, topic, 0, version=OLD).error == NONE


def test_other_acks_for_a_partition_outside_of_the_transaction(
    wire: Wire, transactional_id: str, other: str, identity: Identity
) -> None:
    assert wire.produce(transactional_id, identity, other, 0, version=OLD, acks=2).error == Code.TRANSACTION_ABORTABLE


def test_two_producers(wire: Wire, topic: str, other: str) -> None:
    first, second = wire.init_ok(next_name("txn")), wire.init_ok(next_name("txn"))
    good, third = ((topic, 0), written(first)), (next_name("none"), 0)
    nobody, unmapped = next_name("nobody"), Code.INVALID_PRODUCER_ID_MAPPING
    missing = Code.UNKNOWN_TOPIC_OR_PARTITION
    two = [good, ((other, 0), written(second))]
    assert wire.produce_to(nobody, *two, version=OLD) == [unmapped] * 2
    assert wire.produce_to(nobody, *two, version=OLD, acks=2) == [unmapped] * 2
    assert wire.produce_to(nobody, *two, (third, PLAIN), version=OLD) == [unmapped] * 3
    # only batches that are good so far count
    assert wire.produce_to(nobody, good, (third, written(second)), version=OLD) == [unmapped, missing]
    two_batches = ((other, 0), written(second) * 2)
    assert wire.produce_to(nobody, good, two_batches, version=OLD) == [unmapped, Code.INVALID_RECORD]


# -- epochs and sequences


def test_batches_without_an_epoch(wire: Wire, topic: str) -> None:
    """Kafka cannot tell epoch -1 from a producer that it does not know, and accepts every sequence."""
    producer_id = wire.init_ok(None).producer_id

    def produce(epoch: int, sequence: int) -> Code | int:
        identity = Identity(producer_id, epoch)
        return wire.produce(None, identity, topic, sequence, transactional=False, version=OLD).error

    fenced, late = Code.INVALID_PRODUCER_EPOCH, Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(-2, 0) == fenced
    assert produce(-1, -1) == Code.INVALID_RECORD
    assert [produce(-1, sequence) for sequence in (0, 0, 5, 6, 3)] == [NONE] * 5
    assert wire.list_offsets(topic) == 4  # one of them was a duplicate
    assert [produce(0, sequence) for sequence in (9, 10, 20)] == [NONE, NONE, late]
    assert (produce(-1, 0), produce(1, 5), produce(1, 0)) == (fenced, late, NONE)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_negative_producer_id_is_none(wire: Wire, transactional_id: str, topic: str, transactional: bool) -> None:
    nobody = Identity(-2, 0)
    for _ in range(2):
        batch = record_batch([b"v"], nobody, 0, transactional=transactional)
        assert wire.produce_bytes(transactional_id, topic, batch, version=OLD).error == NONE
    assert wire.list_offsets(topic) == 2
    assert wire.producers(topic) == (NONE, {})


@pytest.mark.parametrize(("offset", "layout", "value"), [(21, ">h", 0x20), (0, ">q", 5), (57, ">i", 0), (23, ">i", 3)])
def test_headers_that_no_client_sends(wire: Wire, topic: str, offset: int, layout: str, value: int) -> None:
    assert wire.produce_bytes(None, topic, patched(PLAIN, offset, layout, value), version=OLD).error == (
        Code.INVALID_RECORD
    )


def test_a_refused_sequence_comes_with_the_start_of_the_log(wire: Wire, topic: str) -> None:
    identity = wire.init_ok(None)
    assert wire.produce(None, identity, topic, 0, transactional=False, version=OLD).error == NONE
    refused = wire.produce_answer(topic, record_batch([b"v"], identity, 7))
    assert (refused.error_code, refused.log_start_offset) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    refused = wire.produce_answer(topic, PLAIN[:-1] + b"?")
    assert (refused.error_code, refused.log_start_offset) == (Code.CORRUPT_MESSAGE, -1)
    refused = wire.produce_answer("__transaction_state", record_batch([b"v"], NO_IDENTITY))
    assert (refused.error_code, refused.log_start_offset) == (Code.INVALID_TOPIC_EXCEPTION, -1)


def test_a_refused_record_comes_with_the_start_of_the_log(wire: Wire, topic: str) -> None:
    refused = wire.produce_answer(topic, patched(PLAIN, 21, ">h", 0x20))
    assert (refused.error_code, refused.log_start_offset) == (Code.INVALID_RECORD, 0)


def test_a_duplicate_is_acknowledged_with_its_timestamp(wire: Wire, topic: str) -> None:
    identity = wire.init_ok(None)
    batch = record_batch([b"v"], identity, 0, timestamp_ms=1_750_000_000_123)
    answers = [wire.produce_answer(topic, batch) for _ in range(2)]
    assert [(each.error_code, each.base_offset, each.log_append_time_ms) for each in answers] == [
        (NONE, 0, -1),
        (NONE, 0, 1_750_000_000_123),
    ]
