"""TxnOffsetCommit, and its effect on OffsetFetch (KIP-98, KIP-447, KIP-890), row by row."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import COMMIT, World
from tests.interop.wire import Code, Identity

rule = pytest.mark.rule

NONE, CT = Code.NONE, Code.CONCURRENT_TRANSACTIONS


def versions(world: World) -> list[int]:
    return list(range(6 if world.has_tv2 else 5))


def added(world: World, version: int, name: str = "x") -> Identity:
    """An identity whose transaction may commit offsets of group "g"."""
    identity = world.wire.init_ok(name)
    if version < 5:
        assert world.wire.add_offsets(name, identity, "g") == NONE
    return identity


@rule("TxnOffsetCommit / the coordinator says 51: 51 in every version, and nobody retries it here")
def test_busy(world: World) -> None:
    for version in versions(world):
        name = f"x{version}"
        identity = world.wire.init_ok(name)
        assert world.wire.add(name, identity, ("t", 0)) == [NONE]
        held = world.hold(PausePoint.BEFORE_MARKER, transactional_id=name)
        assert world.wire.end(name, identity, commit=COMMIT, version=4).error == NONE
        assert world.wire.txn_offset_commit(name, identity, "g", "t", 5, version=version) == CT
        held.release()


@rule("Transactional offsets / WriteTxnMarkers is answered after they are settled (KAFKA-17507)")
def test_settled_when_answered(world: World) -> None:
    identity = added(world, 4)
    assert world.wire.txn_offset_commit("x", identity, "g", "t", 7, version=4) == NONE
    ((topic, (partition,)),) = world.wire.describe("x").topics.items()
    assert world.write_marker(identity, topic, commit=COMMIT, partition=partition) == NONE
    assert world.wire.offset_fetch("g", "t", require_stable=True) == (NONE, 7)


@rule("Transactional offsets / of two producers, each settles its own; the newer in the log wins")
def test_two_producers(world: World) -> None:
    first, second = added(world, 4, "x"), added(world, 4, "y")
    assert world.wire.txn_offset_commit("x", first, "g", "t", 7, version=4) == NONE
    assert world.wire.txn_offset_commit("y", second, "g", "t", 9, version=4) == NONE
    world.end("y", second, commit=COMMIT, old=True)
    assert world.wire.offset_fetch("g", "t") == (NONE, 9)
    assert world.wire.offset_fetch("g", "t", require_stable=True)[0] == Code.UNSTABLE_OFFSET_COMMIT
    world.end("x", first, commit=COMMIT, old=True)
    assert world.wire.offset_fetch("g", "t", require_stable=True) == (NONE, 9)
