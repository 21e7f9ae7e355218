"""Verification of old clients and implicit adds of new ones (KIP-890): the codes of Produce, guards, and the queue."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from dualwrite.broker_emulator import PausePoint
from dualwrite.broker_emulator.cluster.node import Node
from tests.emulator.wire.world import ABORT, COMMIT, TV2, World
from tests.interop.wire import Code, Identity, Produced, Wire, wait_until

rule = pytest.mark.rule

NONE, ITS, TA, IPE, CT = (
    Code.NONE,
    Code.INVALID_TXN_STATE,
    Code.TRANSACTION_ABORTABLE,
    Code.INVALID_PRODUCER_EPOCH,
    Code.CONCURRENT_TRANSACTIONS,
)
RETRY = Code.NOT_ENOUGH_REPLICAS


def produce(world: World, identity: Identity, version: int, *, sequence: int = 0, partition: int = 0) -> Code | int:
    topic = "many" if partition else "t"
    return world.wire.produce("x", identity, topic, sequence, partition=partition, version=version).error


@pytest.mark.profiles(*TV2)
@rule("Produce v12+ / 51 is retried for min(100 ms, the request's timeout), then answered")
def test_busy_new(world: World) -> None:
    identity = world.open()
    held = world.hold(PausePoint.BEFORE_MARKER)
    following = world.wire.end("x", identity, commit=COMMIT).identity
    assert produce(world, following, 12, partition=1) == CT
    held.release()
    world.wire.wait_until_settled("x")
    assert produce(world, following, 12, partition=1) == NONE


@pytest.mark.profiles(*TV2)
@rule("Produce v12+ / goes through when the markers are written while it is retried (KAFKA-18654)")
def test_retried_by_the_server(world: World) -> None:
    identity = world.open()
    held = world.hold(PausePoint.BEFORE_MARKER)
    following = world.wire.end("x", identity, commit=COMMIT).identity
    asked = world.hold(PausePoint.AFTER_VERIFICATION)
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(produce, world, following, 12)
        asked.wait_reached()  # the response is 51
        held.release()
        with world.connect() as other:
            other.wait_until_settled("x")
        asked.release()
        assert writing.result() == NONE
    assert world.wire.list_offsets("t") == 3


@pytest.mark.profiles(*TV2)
@rule("Produce v12+ / the partition is added by the first batch only")
@rule("Implicit add / only where the partition has no open transaction of that pair")
def test_implicit_add(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert produce(world, identity, 12) == NONE
    assert world.wire.describe("x").topics == {"t": [0]}
    before = world.metadata()
    assert produce(world, identity, 12, sequence=1) == NONE
    assert world.metadata() == before


@pytest.mark.profiles(*TV2)
@rule("Implicit add / an append that fails afterwards leaves the partition in the transaction, without data")
def test_added_but_not_appended(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert produce(world, identity, 12, sequence=5) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.wire.describe("x").topics == {"t": [0]}
    assert world.wire.producers("t") == (NONE, {})
    world.end("x", identity, commit=COMMIT)
    (marker,) = world.wire.fetch("t").batches
    assert (marker.is_control, marker.identity) == (True, identity.bumped())
    entry = world.wire.producers("t")[1][identity.producer_id]
    assert (entry.txn_start_offset, entry.last_sequence) == (-1, -1)
    assert world.wire.fetch("t", isolation=1).aborted == ()


@pytest.mark.parametrize("settings", [{"transaction_partition_verification_enable": False}], indirect=True)
@rule("Produce / transaction.partition.verification.enable=false: old clients are believed")
@rule("Produce v12+ / adds whatever transaction.partition.verification.enable says")
@rule("TxnOffsetCommit / transaction.partition.verification.enable=false: old clients are believed")
def test_verification_is_off(world: World) -> None:
    identity = world.wire.init_ok("x")
    for sequence, version in enumerate((3, 10, 11)):
        assert produce(world, identity, version, sequence=sequence) == NONE
    assert world.wire.txn_offset_commit("x", identity, "g", "t", 3, version=3) == NONE
    assert world.wire.describe("x").state == "Empty"  # a hanging transaction, as before KIP-890
    if world.has_tv2:
        assert produce(world, identity, 12, partition=1) == NONE
        assert world.wire.describe("x").topics == {"many": [1]}


# -- guards


@pytest.mark.parametrize("old", [True, False])
@rule("Produce / between the decision and the marker: aborted too, and after it refused")
def test_append_around_the_marker(world: World, old: bool) -> None:
    identity = world.open(old=old)
    held = world.hold(PausePoint.BEFORE_MARKER)
    old = old or not world.has_tv2
    assert world.wire.end("x", identity, commit=ABORT, version=4 if old else 5).error == NONE
    held.wait_reached()
    version = 11 if old else 12
    assert produce(world, identity, version, sequence=1) == NONE
    held.release()
    world.wire.wait_until_settled("x")
    fetched = world.wire.fetch("t", isolation=1)
    assert (fetched.aborted, fetched.last_stable_offset) == (((identity.producer_id, 0),), 3)
    assert produce(world, identity, version, sequence=2) == (TA if old else IPE)


@rule("Guard / verified, then aborted with the marker written, then appended: 48 (KAFKA-14884)")
@pytest.mark.parametrize("version", [10, 11])
def test_late_append(world: World, version: int) -> None:
    identity = world.wire.init_ok("x")
    assert world.wire.add("x", identity, ("t", 0)) == [NONE]
    verified = world.hold(PausePoint.AFTER_VERIFICATION)
    with ThreadPoolExecutor() as threads, world.connect() as other:
        writing = threads.submit(produce, world, identity, version)
        verified.wait_reached()
        assert other.end_settled("x", identity, commit=ABORT, version=4).error == NONE
        verified.release()
        assert writing.result() == ITS
    # nothing hangs
    assert world.wire.list_offsets("t", isolation=1) == world.wire.list_offsets("t") == 1


@pytest.mark.parametrize("version", [10, 11])
@rule("Guard / verified, then aborted by the server with the marker written, then appended: 47")
def test_late_append_after_an_abort_by_the_server(world: World, version: int) -> None:
    identity = world.wire.init_ok("x", timeout_ms=1_000)
    assert world.wire.add("x", identity, ("t", 0)) == [NONE]
    verified = world.hold(PausePoint.AFTER_VERIFICATION)
    with ThreadPoolExecutor() as threads, world.connect() as other:
        writing = threads.submit(produce, world, identity, version)
        verified.wait_reached()
        world.emulator.advance_clock(20_000)
        wait_until(lambda: other.describe("x").state == "CompleteAbort")
        verified.release()
        assert writing.result() == IPE
    assert world.wire.list_offsets("t", isolation=1) == world.wire.list_offsets("t") == 1


@rule("Guard / is deleted by the first transactional batch of the producer")
@rule("Guard / is not needed while the transaction is open")
def test_guard_ends_with_the_first_batch(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert world.wire.add("x", identity, ("t", 0)) == [NONE]
    assert produce(world, identity, 11) == NONE
    assert len(verifications(world)) == 0
    asked = world.hold(PausePoint.BEFORE_VERIFICATION)
    assert produce(world, identity, 11, sequence=1) == NONE
    assert asked.hits == 0
    asked.release()


def verifications(world: World) -> Mapping[int, object]:
    partition = world.emulator.call_in_loop(lambda: world.emulator.cluster.partition("t", 0))
    assert partition is not None
    entries: Mapping[int, object] = partition.log._verifications._entries
    return entries


@rule("Guard / a higher epoch starts the memory over, a lower one is ignored")
def test_lowest_sequence_of_another_epoch(world: World) -> None:
    old = world.wire.init_ok("x")
    assert produce(world, old, 11, sequence=0) == TA
    identity = world.wire.init_ok("x")
    assert world.wire.add("x", identity, ("t", 0)) == [NONE]
    assert produce(world, identity.bumped(5), 11, sequence=0) == IPE
    # the memory of epoch +5 keeps the lowest sequence 0, whichever lower epochs send
    assert produce(world, identity, 11, sequence=3) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(world, identity, 11, sequence=0) == NONE


@rule("Guard / expires with producer.id.expiration.ms")
def test_guard_expires(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert produce(world, identity, 11, sequence=0) == TA
    world.emulator.advance_clock(86_400_000 + 2 * 600_000)
    assert verifications(world) == {}


# -- the queue of a broker that has a request about the id in flight


def ask(world: World, threads: ThreadPoolExecutor, identity: Identity, partition: int) -> Future[Produced]:
    def work() -> Produced:
        with world.connect() as other:
            return other.produce("x", identity, "many", 0, partition=partition, version=11)

    return threads.submit(work)


def queued_epoch(world: World) -> int | None:
    def look() -> int | None:
        (node,) = world.emulator.cluster.nodes.values()
        assert isinstance(node, Node)
        queued = node.add_partitions_to_txn._in_flight.get("x")
        return None if queued is None else queued.producer_epoch

    return world.emulator.call_in_loop(look)


@pytest.mark.parametrize(
    ("by", "first", "second"),
    [
        pytest.param(0, RETRY, NONE, marks=rule("Verification queue / equal epoch: the waiting one gets 13, so 19")),
        pytest.param(1, IPE, IPE, marks=rule("Verification queue / higher epoch: the waiting one gets 47")),
        pytest.param(-1, NONE, IPE, marks=rule("Verification queue / lower epoch: the incoming one gets 47")),
    ],
)
def test_queue(world: World, by: int, first: Code, second: Code) -> None:
    world.wire.init_ok("x")
    identity = world.wire.init_ok("x")
    assert world.wire.add("x", identity, ("many", 0), ("many", 1), ("many", 2)) == [NONE] * 3
    held = world.hold(PausePoint.BEFORE_VERIFICATION)
    with ThreadPoolExecutor() as threads:
        in_flight = ask(world, threads, identity, 0)
        held.wait_reached()
        waiting = ask(world, threads, identity, 1)
        wait_until(lambda: queued_epoch(world) == identity.producer_epoch)
        incoming = ask(world, threads, identity.bumped(by), 2)
        # the evicted one gets its response while the first request is still in flight
        gone = incoming if by < 0 else waiting
        assert gone.result(60).error == (second if by < 0 else first)
        assert not in_flight.done()
        held.release()
        assert in_flight.result(60).error == NONE
        assert (waiting.result(60).error, incoming.result(60).error) == (first, second)


@rule("TxnOffsetCommit / a clash in the queue (13) is 14")
def test_queue_of_offset_commits(world: World, wire: Wire) -> None:
    identity = wire.init_ok("x")
    assert wire.add_offsets("x", identity, "g") == NONE

    def commit(offset: int) -> Code | int:
        with world.connect() as other:
            return other.txn_offset_commit("x", identity, "g", "t", offset, version=4)

    held = world.hold(PausePoint.BEFORE_VERIFICATION)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(commit, 1)
        held.wait_reached()
        second = threads.submit(commit, 2)
        wait_until(lambda: queued_epoch(world) is not None)
        third = threads.submit(commit, 3)
        assert second.result(60) == Code.COORDINATOR_LOAD_IN_PROGRESS
        held.release()
        assert [first.result(60), third.result(60)] == [NONE, NONE]
