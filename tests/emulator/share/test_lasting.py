"""Records acknowledged in a share group are not delivered again: after kills, restarts, fail-overs, and in time."""

from __future__ import annotations

from pathlib import Path

from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.emulator import Emulator
from tests.emulator.api.raw_client import RawClient
from tests.interop.raw_wire.sharing import Sharer, set_group

ACCEPT, RELEASE = 1, 2
CONFIG = BrokerConfig(properties={"group.share.assignment.interval.ms": "0"})


def joined(client: RawClient, group_id: str = "g", topic: str = "orders") -> Sharer:
    set_group(client, group_id, auto_offset_reset="earliest")
    return Sharer(client, group_id, topic).join()


def test_a_new_leader_continues_where_the_old_one_was() -> None:
    with Emulator(nodes=2, config=CONFIG, topics={"orders": 1}) as emulator:
        first, second = emulator.bootstrap_servers.split(",")
        emulator.move_leader("orders", 0, 0)
        emulator.move_coordinator(0, group="g")
        with RawClient(first) as client, RawClient(second) as other:
            sharer = joined(client)
            sharer.put("a", "b", "c", "d")
            assert sharer.acquire() == [(0, 3, 1)]
            assert sharer.acknowledge([(0, 1, [ACCEPT])]) == 0
            emulator.move_leader("orders", 0, 1)
            assert sharer.acknowledge([(2, 2, [ACCEPT])]) == 6
            moved = Sharer(other, "g", "orders", sharer.member_id)
            assert moved.acquire() == [(2, 3, 1)]
            emulator.move_coordinator(1, group="g")
            assert sharer.beat().error_code == 16
            moved.epoch = sharer.epoch
            assert moved.beat().error_code == 0
            emulator.crash_node(0)
            assert moved.acknowledge([(2, 3, [ACCEPT])]) == 0
            assert moved.fetch(max_wait_ms=50).acquired == []


def test_locks_and_sessions_time_out(tmp_path: Path) -> None:
    clock = VirtualClock(1_700_000_000_000)
    with Emulator(config=CONFIG, clock=clock, topics={"orders": 1}, data_dir=tmp_path / "data") as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            sharer = joined(client)
            sharer.put("a", "b")
            assert sharer.acquire() == [(0, 1, 1)]
            emulator.advance_clock(20_000)
            assert sharer.acknowledge([(0, 0, [4])], is_renew_ack=True) == 0
            assert sharer.beat().error_code == 0
            emulator.advance_clock(10_000)
            assert sharer.acquire() == [(1, 1, 2)], "the other one was renewed"
            emulator.advance_clock(35_000)
            assert sharer.beat().error_code == 25, "45 s after its last heartbeat"
            other = Sharer(client, "g", "orders").join()
            assert [row[:2] for row in other.acquire()] == [(0, 0), (1, 1)]
