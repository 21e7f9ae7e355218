"""Access to an emulator's internals, for tests of state that clients cannot see. Only this file knows them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.control.server import ControlServer
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.groups.shard import GroupShard

T = TypeVar("T")


def run_in_loop(emulator: Emulator, function: Callable[[], T]) -> T:
    """Call `function` in the emulator's loop and return its result."""
    return emulator.call_in_loop(function)


def await_in_loop(emulator: Emulator, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` in the emulator's loop and return its result."""
    return emulator._await(work)


def is_deciding(emulator: Emulator, group_id: str) -> bool:
    """Return, in the emulator's loop, whether a thread decides about a consumer group."""
    for node in emulator.cluster.living_nodes:
        shard = node.groups.shard(group_id)
        if isinstance(shard, GroupShard) and group_id in shard.consumer._turns:
            return True
    return False


def is_completing(emulator: Emulator, transactional_id: str) -> bool:
    """Return, in the emulator's loop, whether markers of a transaction are being written."""
    partition = emulator.cluster.transaction_partition(transactional_id)
    transactions = emulator.cluster.nodes[partition.leader_id].transactions
    return transactional_id in transactions._partitions[partition.index].marker_runs


def cluster_of(emulator: Emulator) -> Cluster:
    """Return the cluster that the emulator runs."""
    return emulator.cluster


def control_server_of(emulator: Emulator) -> ControlServer:
    """Return the server of the control port, which must be open."""
    run = emulator._run
    assert run is not None
    assert run.control is not None
    return run.control
