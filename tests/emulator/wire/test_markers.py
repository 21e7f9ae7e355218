"""WriteTxnMarkers, transaction markers and their effect on readers (KIP-98, KIP-890, KIP-1228), row by row."""

from __future__ import annotations

import pytest
from kafka.protocol.admin.topics import DeleteTopicsRequest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import ABORT, COMMIT, TV2, World
from tests.interop.wire import READ_COMMITTED, Code, wait_until

rule = pytest.mark.rule
NONE, IPE = Code.NONE, Code.INVALID_PRODUCER_EPOCH


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
