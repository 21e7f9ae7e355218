"""AddPartitionsToTxn and AddOffsetsToTxn, row by row (KIP-98, KIP-890)."""

from __future__ import annotations

import threading

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import COMMIT, KAFKA_3_9, KIP_939, TV2, World
from tests.interop.wire import Code, ConnectionClosedError, Identity

rule = pytest.mark.rule
NONE, CT, PF, IPM = (
    Code.NONE,
    Code.CONCURRENT_TRANSACTIONS,
    Code.PRODUCER_FENCED,
    Code.INVALID_PRODUCER_ID_MAPPING,
)


@pytest.mark.parametrize("before", ["Empty", "CompleteCommit", "CompleteAbort"])
@rule("AddPartitionsToTxn / Empty or Complete / the transaction is open, its start is now")
@rule("AddPartitionsToTxn / Ongoing / partitions join, the start stays")
def test_open(world: World, before: str) -> None:
    wire = world.wire
    identity = wire.init_ok("x")
    if before != "Empty":
        assert world.write("x", identity).error == NONE
        identity = world.end("x", identity, commit=before == "CompleteCommit")
    world.emulator.advance_clock(1000)
    opened_at_ms = world.emulator.clock.now_ms()
    assert wire.add("x", identity, ("t", 0)) == [NONE]
    world.emulator.advance_clock(1000)
    assert wire.add("x", identity, ("many", 2), ("many", 0)) == [NONE, NONE]
    described = wire.describe("x")
    assert (described.state, described.topics, described.identity) == ("Ongoing", {"t": [0], "many": [0, 2]}, identity)
    assert world.metadata().start_timestamp_ms == opened_at_ms


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


@pytest.mark.parametrize("decided", [True, False])
@rule("AddPartitionsToTxn / while the markers are written / 51")
def test_while_markers_are_written(world: World, decided: bool) -> None:
    identity = world.open(old=True)
    held = world.hold(PausePoint.BEFORE_MARKER)
    assert world.wire.end("x", identity, commit=decided, version=4).error == NONE
    for partition in (("t", 0), ("many", 0)):
        assert world.wire.add("x", identity, partition) == [CT]
    held.release()


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


@pytest.mark.profiles(KIP_939)  # the count is taken before any profile is looked at
@pytest.mark.parametrize("is_first", [True, False])
def test_one_id_does_not_multiply_partitions(world: World, is_first: bool) -> None:
    """320 times 320 are more than a request may have in all."""
    identity = world.wire.init_ok("x")
    names = [("t", 0)] * 320
    assert world.add_many(("x", identity, False, []), ("x", identity, False, names)) == {"x": {}}
    of_one, of_others = (names, [("t", 0)]) if is_first else ([], names)
    with pytest.raises(ConnectionClosedError):
        world.add_many(("x", identity, False, of_one), *[("x", identity, False, of_others)] * 319)


@rule("AddPartitionsToTxn v4+ / one transaction that waits holds up no other")
def test_batch_waits_for_each_by_itself(world: World) -> None:
    first, second = world.wire.init_ok("a"), world.wire.init_ok("b")
    held = world.hold(PausePoint.BEFORE_STATE_APPEND, transactional_id="a")
    done = world.hold(PausePoint.AFTER_STATE_APPEND, transactional_id="b")
    with world.connect() as other:
        asked = World(world.emulator, other, world.profile)
        answers: list[object] = []
        asking = threading.Thread(
            target=lambda: answers.append(
                asked.add_many(("a", first, False, [("t", 0)]), ("b", second, False, [("t", 0)]))
            )
        )
        asking.start()
        held.wait_reached()
        done.wait_reached()
        done.release()
        held.release()
        asking.join()
    assert answers == [{"a": {("t", 0): NONE}, "b": {("t", 0): NONE}}]


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


@pytest.mark.profiles(*TV2)
@rule("AddPartitionsToTxn / v0-3 and AddOffsetsToTxn are recorded as version 0, brokers' adds as version 2")
def test_recorded_version(world: World) -> None:
    identity = world.wire.init_ok("x")
    assert world.wire.add("x", identity, ("t", 0)) == [NONE]
    assert world.metadata().client_transaction_version == 0
    assert world.add_many(("x", identity, False, [("many", 0)]))["x"] == {("many", 0): NONE}
    assert world.metadata().client_transaction_version == 2
    assert world.wire.add_offsets("x", identity, "g") == NONE
    assert world.metadata().client_transaction_version == 0
