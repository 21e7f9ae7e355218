"""What the APIs share that take the nodes of a partition's copies from a client."""

from __future__ import annotations

from collections.abc import Sequence

from dualwrite.broker_emulator.api.registry import Call


def why_not_assignable(call: Call, replicas: Sequence[int], replication_factor: int | None = None) -> str | None:
    """Why a partition cannot have its copies on these nodes (39); None when it can.

    With a replication factor they have to be as many.
    """
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    for before, node_id in zip((None, *sorted(replicas)), sorted(replicas), strict=False):
        if node_id not in call.cluster.nodes:
            return f"The manual partition assignment includes broker {node_id}, but no such broker is registered."
        if node_id == before:
            return f"The manual partition assignment includes the broker {node_id} more than once."
    if replication_factor is not None and len(replicas) != replication_factor:
        return (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )
    return None
