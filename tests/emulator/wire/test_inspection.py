"""DescribeTransactions, ListTransactions, DescribeProducers, FindCoordinator (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import World
from tests.interop.wire import Code

rule = pytest.mark.rule
NONE = Code.NONE


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
