"""AddPartitionsToTxn and AddOffsetsToTxn, row by row (KIP-98, KIP-890)."""

from __future__ import annotations

import threading

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import COMMIT, KAFKA_3_9, TV2, World
from tests.interop.wire import Code, Identity

rule = pytest.mark.rule
NONE, CT, PF, IPM = (
    Code.NONE,
    Code.CONCURRENT_TRANSACTIONS,
    Code.PRODUCER_FENCED,
    Code.INVALID_PRODUCER_ID_MAPPING,
)


@rule("AddPartitionsToTxn / Ongoing / what is in it already is NONE without a record in the log")
def test_subset_writes_nothing(world: World) -> None:
    wire = world.wire
    identity = wire.init_ok("x")
    assert wire.add("x", identity, ("many", 0), ("many", 1)) == [NONE, NONE]
    before = state_log_length(world)
    assert wire.add("x", identity, ("many", 1)) == [NONE]
    assert wire.add("x", identity, ("many", 0), ("many", 1)) == [NONE, NONE]
    assert state_log_length(world) == before
    assert wire.add("x", identity, ("many", 1), ("many", 2)) == [NONE, NONE]
    assert state_log_length(world) == before + 1


def state_log_length(world: World) -> int:
    return sum(world.wire.list_offsets("__transaction_state", partition=index) for index in range(5))


@pytest.mark.profiles(*TV2)
@rule("AddPartitionsToTxn / a pending transition is looked at before the producer (KAFKA-18660)")
def test_pending_first(world: World) -> None:
    identity = world.open(old=True)
    held = world.hold(PausePoint.BEFORE_MARKER)
    assert world.wire.end("x", identity, commit=COMMIT, version=4).error == NONE
    assert world.wire.add("x", identity.bumped(), ("t", 0)) == [CT]
    assert world.wire.add("x", Identity(identity.producer_id + 1, 0), ("t", 0)) == [CT]
    held.release()


@pytest.mark.profiles(KAFKA_3_9)
@rule("AddPartitionsToTxn / the producer is looked at before a pending transition (3.x)")
def test_producer_first(world: World) -> None:
    identity = world.open(old=True)
    held = world.hold(PausePoint.BEFORE_MARKER)
    assert world.wire.end("x", identity, commit=COMMIT, version=4).error == NONE
    assert world.wire.add("x", identity.bumped(), ("t", 0)) == [PF]
    assert world.wire.add("x", Identity(identity.producer_id + 1, 0), ("t", 0)) == [IPM]
    held.release()


# -- v4 and later: from brokers


@rule("AddPartitionsToTxn verify-only / while the markers are written / 51")
@rule("AddPartitionsToTxn verify-only / does not mind another pending transition (KAFKA-14904)")
def test_verify_only_and_pending(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert world.wire.add("x", identity, ("t", 0)) == [NONE]
    held = world.hold(PausePoint.BEFORE_PREPARE_APPEND)
    with world.connect() as other:
        end = World(world.emulator, other, world.profile)
        ending = threading.Thread(target=lambda: end.wire.end("x", identity, commit=COMMIT, version=4))
        ending.start()
        held.wait_reached()
        # pending, but not in the log yet: adds wait, verification reads the stored state
        assert world.wire.add("x", identity, ("many", 0)) == [CT]
        assert world.wire.add_broker("x", identity, ("t", 0), verify_only=True) == NONE
        markers = world.hold(PausePoint.BEFORE_MARKER)
        held.release()
        ending.join()
    markers.wait_reached()
    assert world.wire.add_broker("x", identity, ("t", 0), verify_only=True) == CT
    markers.release()
