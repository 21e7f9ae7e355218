"""Faults that crash a node: with a request, with a marker, at a pause point of its coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, CrashAfter, CrashBefore, Emulator, Fault, PausePoint
from tests.emulator.api.raw_client import batch_of
from tests.emulator.conftest import Connect
from tests.support.conditions import until

NODES = 3


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=3, offsets_topic_num_partitions=3)
    with Emulator(nodes=NODES, config=config, topics={"t": 3}) as broker:
        yield broker


def coordinator_of(connect: Connect, living: int = 0) -> int:
    return int(connect(living).call("find_coordinator", 3, key="x", key_type=1).node_id)


def open_transaction(emulator: Emulator, connect: Connect) -> tuple[int, Any]:
    """Send a record to each partition; return the coordinator and the producer."""
    coordinator = coordinator_of(connect)
    producer = connect(coordinator).init_producer_id("x")
    for index in range(3):
        leader = connect(emulator.log("t", index).leader_id)
        answer = leader.produce("t", batch_of(producer, b"1"), transactional_id="x", partition=index)
        assert answer.error_code == 0
    return coordinator, producer


def is_committed(emulator: Emulator) -> bool:
    return [(described.state, described.topic_partitions) for described in emulator.transactions()] == [
        ("CompleteCommit", ())
    ] and all(emulator.log("t", index).last_stable_offset >= 2 for index in range(3))


def test_the_coordinator_dies_before_its_decision_and_nothing_is_decided(emulator: Emulator, connect: Connect) -> None:
    coordinator, producer = open_transaction(emulator, connect)
    emulator.faults.add(Fault(point=PausePoint.BEFORE_PREPARE_APPEND, action=CrashBefore()))
    with pytest.raises(ConnectionError):
        connect(coordinator).end_txn("x", producer, commit=True)
    (described,) = emulator.transactions()
    assert described.state == "Ongoing"
    successor = coordinator_of(connect, (coordinator + 1) % NODES)
    assert connect(successor).end_txn("x", producer, commit=True).error_code == 0
    until(lambda: is_committed(emulator))


@pytest.mark.parametrize("action", [CrashBefore(), CrashAfter()])
def test_a_leader_dies_of_a_marker_and_the_next_leader_gets_it(
    emulator: Emulator, connect: Connect, action: CrashBefore | CrashAfter
) -> None:
    coordinator, producer = open_transaction(emulator, connect)
    partition = next(index for index in range(3) if emulator.log("t", index).leader_id != coordinator)
    leader = emulator.log("t", partition).leader_id
    crash = emulator.faults.add(Fault(api="WriteTxnMarkers", topic="t", partition=partition, action=action))
    assert connect(coordinator).end_txn("x", producer, commit=True).error_code == 0
    crash.wait()
    until(lambda: is_committed(emulator))
    assert emulator.log("t", partition).leader_id != leader
