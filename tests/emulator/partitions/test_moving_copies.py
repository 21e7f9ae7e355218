"""Reassignments (KIP-455, KIP-860) and elections (KIP-183, KIP-460)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker_emulator import Emulator, Fault, PartitionError
from tests.emulator.api.raw_client import RawClient
from tests.emulator.partitions.admin_requests import (
    PREFERRED,
    UNCLEAN,
    Move,
    Outcome,
    create_partitions,
    describe,
    elect,
    reassign,
    reassignments,
)
from tests.emulator.partitions.conftest import CONFIG

NOT_NEEDED = Outcome(84, "Leader election not needed for topic partition.")


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """A cluster of its own: its nodes die."""
    with Emulator(nodes=3, config=CONFIG, topics={"t": 3}) as emulator:
        yield emulator


def copies(client: RawClient, partition: int = 0) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Replicas, those in sync, and the leader of a partition of "t"."""
    row = describe(client, ["t"]).topics[0].partitions[partition]
    return row.replica_nodes, row.isr_nodes, row.leader_id


# reassignments


def test_a_reassignment_is_under_way_while_replication_is_held(emulator: Emulator, client: RawClient) -> None:
    reassign(client, "t", 0, [0])
    held = emulator.hold_replication("t")
    assert reassign(client, "t", 0, [1, 2]) == Outcome(0)
    move = Move("t", 0, (1, 2, 0), (1, 2), (0,))
    assert reassignments(client) == [move]
    assert reassignments(client, {"t": [1, 0], "nope": [0]}) == [move]
    assert copies(client) == ((1, 2, 0), (0,), 0)
    assert elect(client, PREFERRED, {"t": [0]}) == {("t", 0): Outcome(80, "The preferred leader was not available.")}
    with pytest.raises(ValueError, match="node 1 has no complete replica"):
        emulator.move_leader("t", 0, 1)
    held.release()
    assert reassignments(client) == []
    assert copies(client) == ((1, 2), (1, 2), 1)


def test_a_reassignment_can_be_cancelled(emulator: Emulator, client: RawClient) -> None:
    reassign(client, "t", 0, [0, 1])
    held = emulator.hold_replication("t")
    reassign(client, "t", 0, [2])
    assert reassign(client, "t", 0, None) == Outcome(0)
    assert reassignments(client) == []
    assert copies(client) == ((0, 1), (0, 1), 0)
    held.release()
    assert copies(client) == ((0, 1), (0, 1), 0)


def test_replication_factors_may_be_protected(client: RawClient) -> None:
    refused = reassign(client, "t", 0, [1], may_change_factor=False)
    assert refused == Outcome(38, "The replication factor is changed from 3 to 1")
    assert reassign(client, "t", 0, [1, 2, 0], may_change_factor=False) == Outcome(0)


def test_replicas_keep_their_place_over_a_restart(tmp_path: Path) -> None:
    with Emulator(nodes=3, config=CONFIG, data_dir=tmp_path, topics={"t": 2}) as emulator:
        emulator.reassign("t", 0, [2])
        emulator.reassign("t", 1, [0])
        emulator.hold_replication("t", 1)
        emulator.reassign("t", 1, [1])
    with (
        Emulator(nodes=3, config=CONFIG, data_dir=tmp_path) as emulator,
        RawClient(emulator.bootstrap_servers) as client,
    ):
        assert copies(client, 0) == ((2,), (2,), 2)
        assert copies(client, 1) == ((1,), (1,), 1)  # nothing is held any more
        assert reassignments(client) == []


def test_impossible_calls_from_python_are_refused(emulator: Emulator) -> None:
    for replicas in ([], [0, 0], [7]):
        with pytest.raises(ValueError):
            emulator.reassign("t", 0, replicas)
    with pytest.raises(ValueError, match="no reassignment"):
        emulator.reassign("t", 0, None)
    with pytest.raises(KeyError):
        emulator.reassign("t", 9, [0])


def test_a_fault_hits_one_partition_of_a_request(emulator: Emulator, client: RawClient) -> None:
    emulator.faults.add(Fault(api="AlterPartitionReassignments", topic="t", partition=1, action=PartitionError(7)))
    assert reassign(client, "t", 0, [0, 1]).error == 0
    assert reassign(client, "t", 1, [0, 1]).error == 7
    assert copies(client, 0)[0] == (0, 1)
    assert len(copies(client, 1)[0]) == 3


# elections


def test_of_all_partitions_only_the_changed_ones_are_returned(emulator: Emulator, client: RawClient) -> None:
    emulator.move_leader("t", 1, 0)
    assert elect(client, PREFERRED, None) == {("t", 1): Outcome(0)}
    assert elect(client, PREFERRED, None) == {}


def test_a_dead_node_is_not_elected(emulator: Emulator, client: RawClient) -> None:
    emulator.reassign("t", 2, [2])
    emulator.stop_node(2)
    assert elect(client, PREFERRED, {"t": [2]}) == {("t", 2): Outcome(80, "The preferred leader was not available.")}
    assert elect(client, UNCLEAN, {"t": [0, 2]}) == {
        ("t", 0): NOT_NEEDED,
        ("t", 2): Outcome(83, "Eligible topic partition leaders are not available."),
    }


def test_a_dead_node_gets_no_partition(emulator: Emulator, client: RawClient) -> None:
    emulator.stop_node(2)
    for partition in range(3):
        emulator.reassign("t", partition, [0])
    message = "All brokers specified in the manual partition assignment for partition 3 are fenced or in controlled "
    assert create_partitions(client, {"t": 4}, [[2]])["t"] == Outcome(39, message + "shutdown.")


def test_an_unclean_election_takes_any_living_node(emulator: Emulator, client: RawClient) -> None:
    """A copy was being added when the last complete one went: it has the replicated records."""
    emulator.reassign("t", 2, [2])
    emulator.hold_replication("t", 2)
    emulator.reassign("t", 2, [0])
    emulator.stop_node(2)
    assert copies(client, 2) == ((0, 2), (), -1)
    assert elect(client, UNCLEAN, {"t": [2]}) == {("t", 2): Outcome(0)}
    assert copies(client, 2)[2] == 0


def test_preferred_leaders_from_python(emulator: Emulator) -> None:
    emulator.stop_node(1)
    emulator.start_node(1)
    moved = emulator.elect_preferred_leaders()
    assert ("t", 1) in moved
    assert emulator.log("t", 1).leader_id == 1
    assert emulator.elect_preferred_leaders() == []
