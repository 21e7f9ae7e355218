"""DescribeTransactions, ListTransactions, DescribeProducers, FindCoordinator (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import COMMIT, TV2, World
from tests.interop.wire import NOBODY, ActiveProducer, Code, Identity, Wire

rule = pytest.mark.rule
NONE = Code.NONE


@rule("FindCoordinator / a transactional id has the leader of its partition of __transaction_state")
def test_find_coordinator(wire: Wire) -> None:
    for version in range(1, 4):
        assert wire.find_coordinator("x", version=version) == NONE


@rule("DescribeTransactions / an empty id is 42, an unknown one 105")
@rule("States / Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit and CompleteAbort by these names")
@rule("DescribeTransactions / state, timeout, start (-1 for none), pair and partitions")
def test_describe(world: World) -> None:
    wire = world.wire
    assert wire.describe("").error == Code.INVALID_REQUEST
    assert wire.describe("x").error == Code.TRANSACTIONAL_ID_NOT_FOUND
    identity = wire.init_ok("x", timeout_ms=4321)
    described = wire.describe("x")
    assert (described.state, described.timeout_ms, described.started, described.topics) == ("Empty", 4321, False, {})
    for commit, prepared, completed in (
        (True, "PrepareCommit", "CompleteCommit"),
        (False, "PrepareAbort", "CompleteAbort"),
    ):
        sequence = 0 if commit else 1
        assert world.write("x", identity, sequence=sequence, old=True).error == NONE
        described = wire.describe("x")
        assert (described.state, described.started, described.topics) == ("Ongoing", True, {"t": [0]})
        held = world.hold(PausePoint.BEFORE_MARKER)
        assert wire.end("x", identity, commit=commit, version=4).error == NONE
        assert wire.describe("x").state == prepared
        held.release()
        settled = wire.wait_until_settled("x")
        assert (settled.state, settled.started, settled.topics) == (completed, True, {})


def list_versions(world: World) -> list[int]:
    return [0, 1, 2] if world.has_tv2 else [0, 1]


@rule("ListTransactions / state filters, names that are no state are answered back")
@rule("ListTransactions / only unknown state filters match nothing")
@rule("ListTransactions / filters are ANDed")
def test_list(world: World) -> None:
    opened = world.open("open")
    world.wire.init_ok("idle")
    for version in list_versions(world):
        listed = world.wire.list_transactions
        assert set(listed(version=version)[2]) == {"open", "idle"}
        assert listed(version=version, states=["Ongoing", "Nope"])[1:] == (
            ["Nope"],
            {"open": (opened.producer_id, "Ongoing")},
        )
        assert listed(version=version, states=["Nope"])[1:] == (["Nope"], {})
        assert set(listed(version=version, producer_ids=[opened.producer_id])[2]) == {"open"}
        assert listed(version=version, states=["Empty"], producer_ids=[opened.producer_id])[2] == {}


@rule("ListTransactions / duration filter: longer than, strictly; below 0 it is off; ids without a start pass")
def test_list_by_duration(world: World) -> None:
    world.open("open")
    world.wire.init_ok("idle")
    world.emulator.advance_clock(5000)

    def listed(duration_ms: int) -> set[str]:
        return set(world.wire.list_transactions(version=1, duration_ms=duration_ms)[2])

    assert listed(4999) == {"open", "idle"}
    assert listed(5000) == {"idle"}
    assert listed(-1) == {"open", "idle"}


@pytest.mark.profiles(*TV2)
@rule("ListTransactions v2 / pattern: matches the whole id, empty is off, one that does not compile is 128")
def test_list_by_pattern(wire: Wire) -> None:
    for name in ("a-1", "a-2", "b-1"):
        wire.init_ok(name)
    assert set(wire.list_transactions(pattern="a-.*")[2]) == {"a-1", "a-2"}
    assert set(wire.list_transactions(pattern="a")[2]) == set()
    assert set(wire.list_transactions(pattern="")[2]) == {"a-1", "a-2", "b-1"}
    assert wire.list_transactions(pattern="(")[0] == Code.INVALID_REGULAR_EXPRESSION


@rule("DescribeProducers / a name that is not legal is 17, an unknown partition 3")
@rule("DescribeProducers / pair, last sequence, coordinator epoch and transaction start; -1 for none")
@rule("DescribeProducers / producers without an open transaction are listed too")
def test_describe_producers(world: World) -> None:
    wire = world.wire
    assert wire.producers("not legal!")[0] == Code.INVALID_TOPIC_EXCEPTION
    assert wire.producers("nope")[0] == wire.producers("t", 7)[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
    idempotent = wire.init_ok(None)
    assert wire.produce(None, NOBODY, "t", -1, transactional=False, version=11).error == NONE
    assert wire.produce(None, idempotent, "t", 0, b"a", b"b", transactional=False, version=11).error == NONE
    opened = world.open()
    assert wire.producers("t")[1] == {
        idempotent.producer_id: ActiveProducer(idempotent, 1, -1, -1),
        opened.producer_id: ActiveProducer(opened, 0, -1, 3),
    }
    world.end("x", opened, commit=COMMIT)
    entry = wire.producers("t")[1][opened.producer_id]
    assert entry.txn_start_offset == -1
    assert entry.coordinator_epoch >= 0
    # transaction version 2 begins a new epoch with the marker, in which there is no sequence yet
    expected = (Identity(opened.producer_id, 1), -1) if world.has_tv2 else (opened, 0)
    assert (entry.identity, entry.last_sequence) == expected
