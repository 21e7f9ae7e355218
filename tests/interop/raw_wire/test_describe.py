"""DescribeTransactions, ListTransactions, DescribeProducers, WriteTxnMarkers and ApiVersions, the same on both brokers.

KIP-664 with KIP-994 and KIP-1152; KIP-890 for markers.
"""

from __future__ import annotations

import struct

import pytest

from tests.interop.conftest import Broker
from tests.interop.wire import NO_IDENTITY, READ_COMMITTED, ActiveProducer, Code, ConnectionClosedError, Identity, Wire

# The least versions of the emulator, up to those of the real broker.


def test_describe_transactions(wire: Wire, transactional_id: str, topic: str) -> None:
    absent = wire.describe(transactional_id)
    assert (absent.error, absent.state, absent.timeout_ms) == (Code.TRANSACTIONAL_ID_NOT_FOUND, "", 0)
    assert absent.identity == Identity(0, 0)
    assert wire.describe("").error == Code.INVALID_REQUEST
    identity = wire.init_ok(transactional_id, timeout_ms=12_345)
    described = wire.describe(transactional_id)
    assert (described.error, described.state, described.identity) == (Code.NONE, "Empty", identity)
    assert (described.timeout_ms, described.started, described.topics) == (12_345, False, {})
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    described = wire.describe(transactional_id)
    assert (described.state, described.started, described.topics) == ("Ongoing", True, {topic: [0]})
    assert wire.end_settled(transactional_id, identity, commit=True).error == Code.NONE
    described = wire.describe(transactional_id)
    assert (described.state, described.started, described.topics) == ("CompleteCommit", True, {})


@pytest.mark.parametrize("version", range(3))
def test_list_transactions(wire: Wire, transactional_id: str, topic: str, version: int) -> None:
    empty_id = f"{transactional_id}-empty"
    wire.init_ok(empty_id)
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE

    error, unknown, rows = wire.list_transactions(version=version)
    assert (error, unknown) == (Code.NONE, [])
    assert rows[transactional_id] == (identity.producer_id, "Ongoing")
    assert rows[empty_id][1] == "Empty"

    _, unknown, rows = wire.list_transactions(version=version, states=["Ongoing", "NoSuchState"])
    assert unknown == ["NoSuchState"]
    assert transactional_id in rows
    assert {state for _, state in rows.values()} == {"Ongoing"}
    assert wire.list_transactions(version=version, states=["NoSuchState"])[1:] == (["NoSuchState"], {})

    _, _, rows = wire.list_transactions(version=version, producer_ids=[identity.producer_id])
    assert rows == {transactional_id: (identity.producer_id, "Ongoing")}
    assert wire.list_transactions(version=version, states=["Empty"], producer_ids=[identity.producer_id])[2] == {}


def test_list_transactions_by_age(wire: Wire, transactional_id: str, topic: str) -> None:
    empty_id = f"{transactional_id}-empty"
    wire.init_ok(empty_id)
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    _, _, rows = wire.list_transactions(duration_ms=3_600_000)
    assert transactional_id not in rows
    # shipped quirk: a transaction that never started counts as very old
    assert empty_id in rows


def test_list_transactions_by_pattern(wire: Wire, transactional_id: str) -> None:
    first, second = f"{transactional_id}-pattern-a", f"{transactional_id}-pattern-b"
    wire.init_ok(first)
    wire.init_ok(second)
    assert set(wire.list_transactions(pattern=f"{transactional_id}-pattern-.")[2]) == {first, second}
    assert set(wire.list_transactions(pattern=f"{transactional_id}-pattern-[a]")[2]) == {first}
    # the whole id has to match
    assert wire.list_transactions(pattern=f"{transactional_id}-pattern")[2] == {}
    assert {first, second} <= set(wire.list_transactions(pattern="")[2])
    assert wire.list_transactions(pattern="(")[0] == Code.INVALID_REGULAR_EXPRESSION


def test_describe_producers(wire: Wire, transactional_id: str, topic: str) -> None:
    assert wire.producers(topic) == (Code.NONE, {})
    assert wire.producers(topic, 9)[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.producers("no-such-topic")[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.producers("not a topic!")[0] == Code.INVALID_TOPIC_EXCEPTION
    identity = wire.init_ok(transactional_id)
    assert wire.produce(None, NO_IDENTITY, topic, -1, transactional=False).error == Code.NONE
    assert wire.produce(transactional_id, identity, topic, 0, b"a", b"b").error == Code.NONE
    entry = wire.producers(topic)[1][identity.producer_id]
    assert entry == ActiveProducer(identity, last_sequence=1, coordinator_epoch=-1, txn_start_offset=1)
    assert wire.end_settled(transactional_id, identity, commit=True).error == Code.NONE
    entry = wire.producers(topic)[1][identity.producer_id]
    assert (entry.identity, entry.last_sequence, entry.txn_start_offset) == (identity.bumped(), -1, -1)
    assert entry.coordinator_epoch >= 0


def test_transaction_that_only_added_a_partition(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.add(transactional_id, identity, (topic, 0)) == [Code.NONE]
    assert wire.end_settled(transactional_id, identity, commit=True).error == Code.NONE
    # its marker is written although there is no transaction to end
    assert wire.list_offsets(topic) == 1
    entry = wire.producers(topic)[1][identity.producer_id]
    assert (entry.identity, entry.last_sequence, entry.txn_start_offset) == (identity.bumped(), -1, -1)


# -- WriteTxnMarkers v1: the rules of old coordinators, which are also those of KIP-664's abort tool


def test_marker_of_a_hanging_transaction(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    assert wire.write_marker(identity, topic, commit=False) == Code.NONE
    assert wire.producers(topic)[1][identity.producer_id].txn_start_offset == -1
    assert wire.fetch(topic, isolation=READ_COMMITTED).aborted == ((identity.producer_id, 0),)
    assert wire.end_settled(transactional_id, identity, commit=False).error == Code.NONE


def test_marker_refusals(wire: Wire, transactional_id: str, topic: str) -> None:
    wire.init_ok(transactional_id)
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    assert wire.write_marker(identity.bumped(-1), topic, commit=False) == Code.INVALID_PRODUCER_EPOCH
    assert wire.write_marker(identity, "no-such-topic", commit=False) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.write_marker(identity, topic, commit=False, partition=9) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.write_marker(identity, topic, commit=False, coordinator_epoch=5) == Code.NONE
    assert wire.write_marker(identity, topic, commit=False, coordinator_epoch=4) == Code.TRANSACTION_COORDINATOR_FENCED


def test_marker_of_a_producer_that_the_partition_does_not_know(wire: Wire, topic: str) -> None:
    identity = Identity(987_654, 3)
    assert wire.write_marker(identity, topic, commit=False) == Code.NONE
    entry = wire.producers(topic)[1][identity.producer_id]
    assert (entry.identity, entry.last_sequence, entry.txn_start_offset) == (identity, -1, -1)
    read = wire.fetch(topic, isolation=READ_COMMITTED)
    assert (read.aborted, read.last_stable_offset) == ((), 1)


# -- negotiation


def test_api_versions_from_the_future(wire: Wire) -> None:
    """A broker that does not know the version answers in version 0, and the connection lives on."""
    answer = wire.exchange(struct.pack(">hhih4sB", 18, 99, 5, 4, b"wire", 0) + b"what the future brings")
    correlation_id, error = struct.unpack(">ih", answer[:6])
    assert (correlation_id, error) == (5, Code.UNSUPPORTED_VERSION)
    assert wire.api_versions().error_code == 0


@pytest.mark.parametrize(("api", "version"), [(22, 99), (999, 0), (26, 6)])
def test_other_unknown_versions_close_the_connection(broker: Broker, api: int, version: int) -> None:
    with Wire(broker.bootstrap_servers) as wire, pytest.raises(ConnectionClosedError):
        wire.exchange(struct.pack(">hhih4s", api, version, 5, 4, b"wire") + bytes(40))


def test_garbage_closes_the_connection(broker: Broker) -> None:
    with Wire(broker.bootstrap_servers) as wire, pytest.raises(ConnectionClosedError):
        wire.exchange(struct.pack(">hhih4s", 22, 0, 5, 4, b"wire") + b"\x7f\xff")
