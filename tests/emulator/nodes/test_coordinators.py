"""Coordinators that move and die: which node answers which request, and which markers count (3.9)."""

from __future__ import annotations

from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, PausePoint
from dualwrite.broker_emulator.log.record_batch import iter_records, parse_end_txn_marker, parse_header
from tests.emulator.api.raw_client import RawClient, batch_of
from tests.emulator.conftest import Connect
from tests.emulator.nodes.conftest import NODES
from tests.support.conditions import until

ENDS = ["crash_node", "stop_node", "move"]


def others(node_id: int) -> list[int]:
    return [other for other in range(NODES) if other != node_id]


def replace_coordinator(emulator: Emulator, end: str, transactional_id: str = "x") -> None:
    coordinator = emulator.coordinator(transactional_id=transactional_id)
    if end == "move":
        emulator.move_coordinator(others(coordinator)[0], transactional_id=transactional_id)
    else:
        getattr(emulator, end)(coordinator)


def coordinator_client(emulator: Emulator, connect: Connect, transactional_id: str = "x") -> RawClient:
    return connect(emulator.coordinator(transactional_id=transactional_id))


def markers(emulator: Emulator, topic: str = "t", partition: int = 0) -> list[tuple[bool, int, int]]:
    """Every marker of a partition: whether it commits, its producer epoch and its coordinator epoch."""
    found = []
    for batch in emulator.log(topic, partition).batches:
        header = parse_header(batch)
        if header.is_control:
            marker = parse_end_txn_marker(next(iter(iter_records(batch))))
            assert marker is not None
            found.append((marker.commit, header.producer_epoch, marker.coordinator_epoch))
    return found


def state(emulator: Emulator, transactional_id: str = "x") -> str:
    return next(row.state for row in emulator.transactions() if row.transactional_id == transactional_id)


def away_from(emulator: Emulator, topic: str = "t", transactional_id: str = "x") -> None:
    """Move the topic's leader away from the id's coordinator, so that one node can die alone."""
    emulator.move_leader(topic, 0, others(emulator.coordinator(transactional_id=transactional_id))[0])


@pytest.fixture
def open_transaction(emulator: Emulator, connect: Connect) -> Any:
    """The producer of a transaction with one record in `t`, whose leader is not its coordinator."""
    away_from(emulator)
    producer = coordinator_client(emulator, connect).init_producer_id("x")
    leader = connect(emulator.log("t").leader_id)
    assert leader.produce("t", batch_of(producer, b"1"), transactional_id="x").error_code == 0
    return producer


def test_requests_while_a_coordinator_loads(emulator: Emulator, connect: Connect, open_transaction: Any) -> None:
    held = emulator.hold(PausePoint.BEFORE_LOAD, lambda context: context["topic"] == "__transaction_state")
    replace_coordinator(emulator, "crash_node")
    held.wait_reached()
    client = coordinator_client(emulator, connect)
    assert client.init_producer_id("x").error_code == 14
    assert client.end_txn("x", open_transaction, commit=True).error_code == 14
    listed = client.call("list_transactions", 1, state_filters=(), producer_id_filters=(), duration_filter=-1)
    assert listed.error_code == 14
    leader = connect(emulator.log("t").leader_id)
    second = batch_of(open_transaction, b"2", sequence=1)
    assert leader.produce("t", second, transactional_id="x").error_code == 0  # open there: no coordinator is asked
    elsewhere = connect(emulator.log("many", 0).leader_id)
    first = batch_of(open_transaction, b"3")
    assert elsewhere.produce("many", first, transactional_id="x").error_code == 19
    held.release()
    until(lambda: client.end_txn("x", open_transaction, commit=True).error_code != 14)
    until(lambda: state(emulator) == "CompleteCommit")


def test_a_coordinator_moves_while_it_loads(emulator: Emulator, connect: Connect, open_transaction: Any) -> None:
    first, second = others(emulator.coordinator(transactional_id="x"))
    held = emulator.hold(PausePoint.BEFORE_LOAD, lambda context: context["node_id"] == first)
    emulator.move_coordinator(first, transactional_id="x")
    held.wait_reached()
    emulator.move_coordinator(second, transactional_id="x")
    assert connect(first).end_txn("x", open_transaction, commit=True).error_code == 16
    held.release()
    client = connect(second)
    until(lambda: client.end_txn("x", open_transaction, commit=True).error_code == 0)
    assert connect(first).end_txn("x", open_transaction, commit=True).error_code == 16


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("commit", [True, False])
def test_pending_offsets_survive_their_coordinator(
    emulator: Emulator, connect: Connect, end: str, commit: bool
) -> None:
    group = emulator.coordinator(group="g")
    emulator.move_coordinator(others(group)[0], transactional_id="x")
    client = coordinator_client(emulator, connect)
    producer = client.init_producer_id("x")
    assert connect(group).txn_offset_commit("x", producer, "g", "t", 5) == 0
    if end == "move":
        emulator.move_coordinator(others(group)[1], group="g")
    else:
        getattr(emulator, end)(group)
    survivor = connect(emulator.coordinator(group="g"))
    assert survivor.offset_fetch("g", "t").error_code == 88
    assert client.end_txn("x", producer, commit=commit).error_code == 0
    until(lambda: state(emulator).startswith("Complete"))
    expected = 5 if commit else -1
    answer = survivor.offset_fetch("g", "t")
    assert (answer.error_code, answer.committed_offset) == (0, expected)
    reader = next(node for node in emulator.living_nodes if node != emulator.coordinator(group="g"))
    emulator.move_coordinator(reader, group="g")  # which reads the marker from the log
    assert connect(reader).offset_fetch("g", "t").committed_offset == expected


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "point", [PausePoint.AFTER_PREPARE_APPEND, PausePoint.BEFORE_MARKER, PausePoint.BEFORE_COMPLETE_APPEND]
)
def test_a_decision_outlives_its_coordinator(
    emulator: Emulator, connect: Connect, open_transaction: Any, point: PausePoint, end: str
) -> None:
    """Race 6, and 7 for a single partition: a new coordinator writes the missing markers."""
    before = emulator.coordinator(transactional_id="x")
    client = connect(before)
    identity = {"producer_id": open_transaction.producer_id, "producer_epoch": open_transaction.producer_epoch}
    held = emulator.hold(point, lambda context: context["node_id"] == before)
    client.send("end_txn", 5, transactional_id="x", committed=True, **identity)
    held.wait_reached()
    written_before = markers(emulator)
    replace_coordinator(emulator, end)
    until(lambda: state(emulator) == "CompleteCommit")
    held.release()
    marker_epoch = open_transaction.producer_epoch + 1
    assert markers(emulator) == [*written_before, (True, marker_epoch, 1)]
    assert emulator.log("t").last_stable_offset == emulator.log("t").log_end_offset
    again = coordinator_client(emulator, connect).end_txn("x", open_transaction, commit=True)
    assert (again.error_code, again.producer_epoch) == (0, marker_epoch)  # the client's retry is recognised


@pytest.mark.parametrize("end", ENDS)
def test_markers_that_were_acknowledged_are_accepted_again(emulator: Emulator, connect: Connect, end: str) -> None:
    """Race 7: two of three partitions have their marker when the coordinator goes; all three get one from the next."""
    before = emulator.coordinator(transactional_id="x")
    for index in range(3):
        emulator.move_leader("many", index, others(before)[index % 2])
    client = connect(before)
    producer = client.init_producer_id("x")
    for index in range(3):
        leader = connect(emulator.log("many", index).leader_id)
        records = batch_of(producer, b"%d" % index)
        assert leader.produce("many", records, transactional_id="x", partition=index).error_code == 0
    last = emulator.hold(
        PausePoint.BEFORE_MARKER, lambda context: context["partition"] == 2 and context["node_id"] == before
    )
    assert client.end_txn("x", producer, commit=False).error_code == 0
    last.wait_reached()
    until(lambda: all(markers(emulator, "many", index) for index in range(2)))
    until(lambda: len(emulator.transactions()[0].topic_partitions) == 1)
    replace_coordinator(emulator, end)
    until(lambda: state(emulator) == "CompleteAbort")
    last.release()
    marker_epoch = producer.producer_epoch + 1
    for index in range(3):
        ours = [(False, marker_epoch, 0), (False, marker_epoch, 1)]
        assert markers(emulator, "many", index) == (ours if index < 2 else ours[1:])
        log = emulator.log("many", index)
        assert log.last_stable_offset == log.log_end_offset


@pytest.mark.parametrize("least", [1, 2, 3])
def test_the_coordinator_writes_only_with_enough_replicas(least: int) -> None:
    """15 for the client, as by Kafka, whose append is refused with NOT_ENOUGH_REPLICAS."""
    config = BrokerConfig.from_properties(
        {"transaction.state.log.min.isr": least, "transaction.state.log.num.partitions": 1}
    )
    with Emulator(nodes=3, config=config) as emulator:
        coordinator = emulator.coordinator(transactional_id="x")
        others = [node_id for node_id in range(3) if node_id != coordinator]
        with RawClient(emulator.bootstrap_servers.split(",")[coordinator]) as client:
            for in_sync in (3, 2, 1):
                assert client.init_producer_id("x").error_code == (0 if in_sync >= least else 15)
                if others:
                    emulator.crash_node(others.pop())
            emulator.start_node(0 if coordinator else 1)
            emulator.start_node(2 if coordinator != 2 else 1)
            assert client.init_producer_id("x").error_code == 0
