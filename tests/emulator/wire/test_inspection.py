"""DescribeTransactions, ListTransactions, DescribeProducers, FindCoordinator (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

import pytest

from tests.emulator.wire.world import World
from tests.interop.wire import Code

rule = pytest.mark.rule
NONE = Code.NONE


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
