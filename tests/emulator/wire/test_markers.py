"""WriteTxnMarkers and transaction markers (KIP-98, KIP-890, KIP-1228), row by row."""

from __future__ import annotations

import struct

import pytest
from kafka.protocol.admin.topics import DeleteTopicsRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import ABORT, COMMIT, KAFKA_3_9, TV2, World
from tests.interop.wire import READ_COMMITTED, Code, Identity, wait_until

rule = pytest.mark.rule
NONE, IPE = Code.NONE, Code.INVALID_PRODUCER_EPOCH


@rule("WriteTxnMarkers / no markers, an empty answer")
def test_nothing(world: World) -> None:
    for version in (1, 2) if world.has_tv2 else (1,):
        assert world.wire.call(WriteTxnMarkersRequest(version=version, markers=[])).markers == []


@rule("WriteTxnMarkers / an unknown partition is 3")
def test_unknown_partition(world: World) -> None:
    assert world.write_marker(Identity(1, 0), "nope") == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert world.write_marker(Identity(1, 0), "t", partition=4) == Code.UNKNOWN_TOPIC_OR_PARTITION


@rule("WriteTxnMarkers / a coordinator epoch below the last one seen for the producer is 52")
def test_coordinator_epoch(world: World) -> None:
    identity = world.open()
    assert world.write_marker(identity, coordinator_epoch=5) == NONE
    assert world.write_marker(identity, coordinator_epoch=4) == Code.TRANSACTION_COORDINATOR_FENCED
    assert world.write_marker(identity, coordinator_epoch=5) == NONE
    assert world.write_marker(Identity(identity.producer_id + 1, 0), coordinator_epoch=1) == NONE


@rule("WriteTxnMarkers / old rule: an epoch below the partition's is 47, the same or a later one is taken")
@pytest.mark.parametrize("transaction_version", [None, 0, 1])
def test_old_rule(world: World, transaction_version: int | None) -> None:
    if transaction_version is not None and not world.has_tv2:
        transaction_version = None
    world.wire.init_ok("x")
    identity = world.open()
    assert world.write_marker(identity.bumped(-1), transaction_version=transaction_version) == IPE
    assert world.write_marker(identity, transaction_version=transaction_version) == NONE
    assert world.write_marker(identity, transaction_version=transaction_version) == NONE
    assert world.write_marker(identity.bumped(), transaction_version=transaction_version) == NONE


@pytest.mark.profiles(*TV2)
@rule("WriteTxnMarkers / rule of version 2: the partition's epoch is 47 while a transaction is open (KAFKA-19446)")
@rule("WriteTxnMarkers / rule of version 2: the partition's epoch is taken again when nothing is open (KAFKA-19999)")
@rule("WriteTxnMarkers / rule of version 2: an epoch below the partition's is 47")
def test_new_rule(world: World) -> None:
    world.wire.init_ok("x")
    identity = world.open()
    assert world.write_marker(identity.bumped(-1), transaction_version=2) == IPE
    assert world.write_marker(identity, transaction_version=2) == IPE
    assert world.wire.producers("t")[1][identity.producer_id].txn_start_offset == 0
    assert world.write_marker(identity.bumped(), transaction_version=2) == NONE
    assert world.wire.producers("t")[1][identity.producer_id].txn_start_offset == -1
    assert world.write_marker(identity.bumped(), transaction_version=2) == NONE
    assert world.write_marker(identity, transaction_version=2) == IPE
    assert world.wire.list_offsets("t") == 3


@rule("WriteTxnMarkers / an unknown producer: the marker is written and the producer known from then on")
@rule("Producer state / a marker with nothing open: no entry among the aborted transactions")
def test_unknown_producer(world: World) -> None:
    identity = Identity(123_456, 3)
    assert world.write_marker(identity, commit=ABORT, coordinator_epoch=2) == NONE
    entry = world.wire.producers("t")[1][identity.producer_id]
    assert (entry.identity, entry.last_sequence, entry.txn_start_offset) == (identity, -1, -1)
    assert entry.coordinator_epoch == 2
    fetched = world.wire.fetch("t", isolation=READ_COMMITTED)
    assert (fetched.aborted, fetched.last_stable_offset) == ((), 1)


@pytest.mark.profiles(KAFKA_3_9)
@rule("WriteTxnMarkers / v2 is not served in 3.9")
def test_no_v2(world: World) -> None:
    offered = {api.api_key: api.max_version for api in world.wire.api_versions().api_keys}
    assert offered[27] == 1


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
@rule("Markers / bytes of key and value")
@rule("Markers / transactional control batch of one record, without sequence, at the marker's epoch")
@rule("Markers / take one offset and count in high watermark and last stable offset")
def test_marker_bytes(world: World, commit: bool) -> None:
    assert world.write_marker(Identity(77, 3), commit=commit, coordinator_epoch=7) == NONE
    (batch,) = world.emulator.log("t").batches
    attributes, last_delta = struct.unpack_from(">hi", batch, 21)
    producer_id, epoch, sequence, count = struct.unpack_from(">qhii", batch, 43)
    assert (attributes, last_delta, producer_id, epoch, sequence, count) == (0x30, 0, 77, 3, -1, 1)
    (read,) = world.wire.fetch("t").batches
    assert read.keys == (bytes.fromhex("00000001" if commit else "00000000"),)
    assert read.values == (bytes.fromhex("000000000007"),)
    assert (world.wire.list_offsets("t"), world.wire.list_offsets("t", isolation=READ_COMMITTED)) == (1, 1)


@rule("Markers / go to every partition of the transaction, also where nothing was written")
def test_every_partition(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert world.wire.add("x", identity, ("many", 0), ("many", 1), ("many", 2)) == [NONE] * 3
    assert world.wire.produce("x", identity, "many", 0, partition=1, version=11).error == NONE
    world.end("x", identity, commit=ABORT, old=True)
    assert [world.wire.list_offsets("many", partition=index) for index in range(3)] == [1, 2, 1]


@rule("Markers / partitions leave the transaction as they acknowledge, and DescribeTransactions shows what is left")
def test_outstanding_markers(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert world.wire.add("x", identity, ("many", 0), ("many", 1), ("many", 2)) == [NONE] * 3
    held = world.hold(PausePoint.BEFORE_MARKER, topic="many", partition=1)
    written = world.hold(PausePoint.AFTER_MARKER, topic="many", partition=2)
    assert world.wire.end("x", identity, commit=COMMIT, version=4).error == NONE
    held.wait_reached()
    written.wait_reached()
    written.release()
    wait_until(lambda: len(world.wire.describe("x").topics["many"]) == 1)
    described = world.wire.describe("x")
    assert (described.state, described.topics) == ("PrepareCommit", {"many": [1]})
    held.release()
    assert world.wire.wait_until_settled("x").topics == {}


@rule("Markers / a coordinator that is told 47 stops, and the id stays as it was decided")
def test_cancelled(world: World) -> None:
    identity = world.open()
    held = world.hold(PausePoint.BEFORE_MARKER)
    done = world.hold(PausePoint.AFTER_MARKER)
    version = 5 if world.has_tv2 else 4
    assert world.wire.end("x", identity, commit=COMMIT, version=version).error == NONE
    held.wait_reached()
    assert world.write_marker(identity.bumped(9)) == NONE
    held.release()
    done.wait_reached()
    done.release()
    assert world.wire.describe("x").state == "PrepareCommit"
    assert world.wire.init("x").error == Code.CONCURRENT_TRANSACTIONS
    assert len(world.wire.fetch("t").batches) == 2


@rule("Markers / before transaction version 2 a late one ends the next transaction, which is lost")
def test_late(world: World) -> None:
    identity = world.open(old=True)
    world.end("x", identity, commit=ABORT, old=True)
    assert world.write("x", identity, sequence=1, old=True).error == NONE
    assert world.write_marker(identity, commit=ABORT) == NONE
    world.end("x", identity, commit=COMMIT, old=True)
    fetched = world.wire.fetch("t", isolation=READ_COMMITTED)
    # record, abort, record, abort, commit
    assert (fetched.aborted, fetched.last_stable_offset) == (tuple((identity.producer_id, at) for at in (0, 2)), 5)


@rule("Markers / a topic that was deleted is dropped from the transaction")
def test_deleted_topic(world: World) -> None:
    identity = world.open()
    world.wire.call(DeleteTopicsRequest(version=5, topic_names=["t"], timeout_ms=1000))
    world.end("x", identity, commit=COMMIT)
    assert world.wire.describe("x").state == "CompleteCommit"
