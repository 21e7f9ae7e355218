"""Reset a running cluster to one without records, faults and held points, for the next test of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from dualwrite.broker_emulator.cluster.cluster import Cluster, ClusterNode
from dualwrite.broker_emulator.log.partition_log import HIGH_WATERMARK
from dualwrite.broker_emulator.slices import in_slices
from dualwrite.broker_emulator.transactions.states import PREPARE_STATES, TransactionState

_OPEN: Final = PREPARE_STATES | {TransactionState.ONGOING}
_STEP_S: Final = 0.001
_END_TIMEOUT_S: Final = 20.0


async def clear(cluster: Cluster, start_node: Callable[[int], Awaitable[None]]) -> None:
    """Release all holds, start every node, abort open transactions, delete records and idle groups.

    Faults must have been removed. Raises TimeoutError if a transaction does not end.
    """
    for hold in cluster.pause_points.holds:
        hold.release()
    for node in [node for node in cluster.nodes.values() if not node.is_alive]:
        await start_node(node.node_id)
    for partition in cluster.partitions():
        if partition.log.is_high_watermark_held:
            partition.log.release_high_watermark()
    await _end_transactions(cluster)
    for topic in cluster.topics.values():
        if not topic.is_internal:
            for partition in topic.partitions:
                await in_slices(partition.log.delete_records(HIGH_WATERMARK))
    await _delete_idle_groups(cluster)


async def _end_transactions(cluster: Cluster) -> None:
    """Abort open transactions by InitProducerId, which fences their producers, and wait until all have ended."""
    aborted: set[str] = set()
    try:
        async with asyncio.timeout(_END_TIMEOUT_S):
            while unfinished := _open_ids(cluster):
                for node, transactional_id in unfinished:
                    if transactional_id not in aborted:
                        aborted.add(transactional_id)
                        timeout_ms = cluster.config.transaction_max_timeout_ms
                        await node.transactions.init_producer_id(transactional_id, timeout_ms)
                await asyncio.sleep(_STEP_S)
    except TimeoutError:
        listed = ", ".join(repr(transactional_id) for _, transactional_id in _open_ids(cluster))
        raise TimeoutError(
            f"transactions did not end within {_END_TIMEOUT_S:g} s, so nothing was deleted: {listed}; markers cannot "
            "be written to a partition without a leader"
        ) from None


def _open_ids(cluster: Cluster) -> list[tuple[ClusterNode, str]]:
    return [
        (node, metadata.transactional_id)
        for node in cluster.living_nodes
        for metadata in node.transactions.known_ids()
        if metadata.state in _OPEN or metadata.pending_state in _OPEN
    ]


async def _delete_idle_groups(cluster: Cluster) -> None:
    """Delete groups without members. Groups that a client has just joined, or never left, stay."""
    for node in cluster.living_nodes:
        for shard in node.groups.shards():
            for group_id in list(shard.groups):
                shard.delete_group(group_id)
            for group_id in list(shard.share.groups):
                await shard.share.delete_group(group_id)
