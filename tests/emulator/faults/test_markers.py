"""Faults between the transaction coordinator and the leaders that it sends markers to, and at pause points."""

from __future__ import annotations

from typing import Any

import pytest

from dualwrite.broker_emulator import (
    CloseBefore,
    Delay,
    DropReply,
    DropRequest,
    Duplicate,
    Emulator,
    Error,
    Fault,
    FaultHandle,
    Hold,
    PausePoint,
    Reorder,
)
from dualwrite.broker_emulator.faults.actions import Action
from tests.emulator.api.raw_client import RawClient, batch_of


def commit_on_three_partitions(client: RawClient) -> Any:
    producer = client.init_producer_id("x")
    for partition in range(3):
        client.produce("t", batch_of(producer, b"1"), transactional_id="x", partition=partition)
    return client.end_txn("x", producer, commit=True)


def completion(emulator: Emulator) -> FaultHandle:
    """Return a fault that observes that Complete is written."""
    return emulator.faults.add(Fault(point=PausePoint.AFTER_COMPLETE_APPEND))


def ends(emulator: Emulator) -> list[int]:
    return [emulator.log("t", index).log_end_offset for index in range(3)]


@pytest.mark.parametrize(
    ("action", "markers_on_partition_1"),
    [
        (DropRequest(), 1),
        (CloseBefore(), 1),
        (DropReply(), 2),  # it came and was not answered: the coordinator sends it again
        (Duplicate(), 2),
        (Delay(20), 1),
        (Error("NOT_LEADER_OR_FOLLOWER"), 1),
        (Error("REQUEST_TIMED_OUT"), 1),
        (Error("UNSUPPORTED_FOR_MESSAGE_FORMAT"), 0),  # the partition is given up
    ],
)
def test_a_transaction_completes_although_one_marker_fails(
    emulator: Emulator, client: RawClient, action: Action, markers_on_partition_1: int
) -> None:
    completed = completion(emulator)
    fault = emulator.faults.add(Fault(api="WriteTxnMarkers", topic="t", partition=1, action=action))
    assert commit_on_three_partitions(client).error_code == 0
    completed.wait()
    assert fault.hits == 1
    assert ends(emulator) == [2, 1 + markers_on_partition_1, 2]
    assert emulator.transactions()[0].state == "CompleteCommit"


def test_markers_of_two_partitions_change_places(emulator: Emulator, client: RawClient) -> None:
    completed = completion(emulator)
    swapped = emulator.faults.add(Fault(api="WriteTxnMarkers", action=Reorder()))
    commit_on_three_partitions(client)
    completed.wait()
    assert swapped.hits == 1
    assert ends(emulator) == [2, 2, 2]


def test_other_faults_do_not_match_markers(emulator: Emulator, client: RawClient) -> None:
    completed = completion(emulator)
    anything = emulator.faults.add(Fault(topic="t"))
    commit_on_three_partitions(client)
    completed.wait()
    assert anything.hits == 3


def test_a_pause_point_is_held_once_by_a_fault(emulator: Emulator, client: RawClient) -> None:
    held = emulator.faults.add(
        Fault(point=PausePoint.BEFORE_COMPLETE_APPEND, transactional_id="x", node=0, action=Hold())
    )
    elsewhere = emulator.faults.add(Fault(point=PausePoint.BEFORE_COMPLETE_APPEND, transactional_id="y"))
    commit_on_three_partitions(client)
    held.wait_held()
    assert ends(emulator) == [2, 2, 2]
    assert emulator.transactions()[0].state == "PrepareCommit"
    completed = completion(emulator)
    held.release()
    completed.wait()
    assert elsewhere.hits == 0
