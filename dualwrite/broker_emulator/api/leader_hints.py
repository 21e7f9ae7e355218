"""Who leads instead (KIP-951): Produce v10+ and Fetch v16+ say it with the error and save a Metadata request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import Call
from dualwrite.broker_emulator.api.topics import requested_topic

_ERRORS = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})
_NOTHING: Mapping[str, Any] = {}


class LeaderHints:
    """The fields to add to one response; none in versions that do not have them."""

    __slots__ = ("_call", "_leaders")

    def __init__(self, call: Call, errors: Sequence[ErrorCode]) -> None:
        self._call = call
        self._leaders: set[int] | None = None
        if not _ERRORS.isdisjoint(errors) and hasattr(call.new, "NodeEndpoint"):
            self._leaders = set()

    def for_partition(self, requested: Any, index: int, error: ErrorCode) -> Mapping[str, Any]:
        """The fields of a partition of the topic that `requested` means."""
        if self._leaders is None or error not in _ERRORS:
            return _NOTHING
        topic, _ = requested_topic(self._call, requested)
        partition = None if topic is None else self._call.cluster.partition(topic.name, index)
        if partition is None or partition.leader_id not in self._call.cluster.nodes:
            return _NOTHING
        self._leaders.add(partition.leader_id)
        leader_epoch = partition.log.leader_epoch
        hint = self._call.new.LeaderIdAndEpoch(leader_id=partition.leader_id, leader_epoch=leader_epoch)
        return {"current_leader": hint}

    def for_response(self) -> Mapping[str, Any]:
        """The fields of the response itself: where the leaders are that were named before."""
        if not self._leaders:
            return _NOTHING
        nodes = (self._call.cluster.nodes[node_id] for node_id in sorted(self._leaders))
        return {
            "node_endpoints": tuple(
                self._call.new.NodeEndpoint(node_id=node.node_id, rack=None, **self._call.endpoint(node)._asdict())
                for node in nodes
            )
        }
