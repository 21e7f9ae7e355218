"""A new coordinator knows what the log holds, and loses the rest, by profile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.test_time import rare_scans
from tests.emulator.wire.world import COMMIT, KAFKA_3_9, KAFKA_4_3, KIP_939, LAST, TV2, World
from tests.interop.wire import NO_IDENTITY, Code, End, Init, wait_until

rule = pytest.mark.rule
NONE, PF = Code.NONE, Code.PRODUCER_FENCED


def fail_over(world: World) -> None:
    """The coordinator dies and comes back, with nothing but the log."""
    world.wire.close()
    world.emulator.crash_node(0)
    world.emulator.start_node(0)
    world.wire = world.connect()
    wait_until(lambda: world.wire.describe("x").error == NONE)


@pytest.fixture
def world(world: World) -> Iterator[World]:
    yield world
    world.wire.close()


@rule("Recovery / Ongoing stays, and can be ended by the same pair")
@rule("Recovery / the timeout counts from the stored start")
def test_open_transaction(world: World) -> None:
    identity = world.open()
    fail_over(world)
    assert world.wire.describe("x").topics == {"t": [0]}
    world.end("x", identity, commit=COMMIT)
    opened = world.open("x")
    world.emulator.advance_clock(50_000)
    fail_over(world)
    world.emulator.advance_clock(20_000)
    wait_until(lambda: world.wire.describe("x").state == "CompleteAbort")
    assert world.wire.describe("x").identity == opened.bumped()


@pytest.mark.parametrize("commit", [True, False])
@rule("Recovery / a decided transaction: all its markers again, with the new coordinator epoch, then Complete")
def test_decided_transaction(world: World, commit: bool) -> None:
    identity = world.open()
    held = world.hold(PausePoint.BEFORE_MARKER)
    version = 5 if world.has_tv2 else 4
    assert world.wire.end("x", identity, commit=commit, version=version).error == NONE
    held.wait_reached()
    fail_over(world)
    held.release()
    settled = world.wire.wait_until_settled("x")
    assert settled.state == ("CompleteCommit" if commit else "CompleteAbort")
    marker = world.wire.fetch("t").batches[-1]
    assert marker.is_control
    assert world.wire.producers("t")[1][identity.producer_id].coordinator_epoch >= 1


@pytest.mark.profiles(KIP_939)
@rule("Recovery / a retry of InitProducerId is recognised, because the last epoch is in the log (KAFKA-20357)")
def test_init_retry(world: World) -> None:
    identity = world.wire.init_ok("x")
    answer = world.wire.init("x", identity)
    fail_over(world)
    assert world.wire.init("x", identity) == answer


@pytest.mark.profiles(KAFKA_4_3, KAFKA_3_9)
@rule("Recovery / a retry of InitProducerId is 90 in releases, whose log does not have the last epoch")
def test_init_retry_in_releases(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert world.wire.init("x", identity) == Init(NONE, identity.bumped())
    fail_over(world)
    assert world.wire.init("x", identity) == Init(PF, NO_IDENTITY)


@pytest.mark.profiles(*TV2)
@rule("Recovery / a retry of EndTxn is recognised")
def test_end_retry(world: World) -> None:
    identity = world.open()
    following = world.end("x", identity, commit=COMMIT)
    fail_over(world)
    assert world.wire.end("x", identity, commit=COMMIT) == End(NONE, following)


@pytest.mark.profiles(*TV2)
@rule("Recovery / a rotation is finished, and its retry recognised (KAFKA-20310)")
def test_rotation(world: World) -> None:
    last = world.at_epoch(LAST)
    assert world.write("x", last).error == NONE
    held = world.hold(PausePoint.BEFORE_MARKER)
    answer = world.wire.end("x", last, commit=COMMIT)
    held.wait_reached()
    fail_over(world)
    held.release()
    assert world.wire.wait_until_settled("x").identity == answer.identity
    assert world.wire.end("x", last, commit=COMMIT) == answer
    fail_over(world)
    assert world.wire.end("x", last, commit=COMMIT) == answer


@pytest.mark.profiles(KIP_939)
@rule("Recovery / the client's pair beside a prepared transaction is kept (KIP-939)")
def test_dual_identity(world: World) -> None:
    opened = world.wire.init_ok("x", version=6, enable_2pc=True)
    assert world.write("x", opened).error == NONE
    kept = world.wire.init("x", version=6, enable_2pc=True, keep=True)
    fail_over(world)
    assert world.wire.end("x", opened, commit=COMMIT) == End(PF)
    assert world.wire.end_settled("x", kept.identity, commit=COMMIT) == End(NONE, kept.identity.bumped())


@rule("TxnOffsetCommit / while the group's coordinator loads: 14, below v2 15")
def test_offsets_while_the_group_loads(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert world.wire.add_offsets("x", identity, "g") == NONE
    held = world.hold(PausePoint.BEFORE_LOAD, topic="__consumer_offsets")
    fail_over(world)
    for version in range(6 if world.has_tv2 else 5):
        loading = Code.COORDINATOR_NOT_AVAILABLE if version < 2 else Code.COORDINATOR_LOAD_IN_PROGRESS
        assert world.wire.txn_offset_commit("x", identity, "g", "t", 5, version=version) == loading
    held.release()


@rare_scans
@rule("Recovery / an id that expired stays gone")
def test_tombstone(world: World) -> None:
    first = world.wire.init_ok("gone")
    world.wire.init_ok("x")
    world.emulator.advance_clock(604_800_000)
    world.wire.init_ok("x")
    world.emulator.advance_clock(3_600_000)
    wait_until(lambda: world.wire.describe("gone").error == Code.TRANSACTIONAL_ID_NOT_FOUND)
    fail_over(world)
    assert world.wire.describe("gone").error == Code.TRANSACTIONAL_ID_NOT_FOUND
    assert world.wire.init_ok("gone", first).producer_id != first.producer_id
