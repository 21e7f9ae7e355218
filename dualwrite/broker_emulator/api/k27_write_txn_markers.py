"""WriteTxnMarkers (key 27), versions 1-2.

Ends transactions on partitions that this node leads, for their coordinator. An operator sends it too, to abort a
hanging transaction.

* v1 flexible; v2 adds the version of the transaction (KIP-1228), which determines whether the epoch of a marker must be
  newer than that of the partition or may be equal. v1 markers follow the old rule.
* Access: ALTER or CLUSTER_ACTION on the cluster (31).
* Unknown partition 3, led by another node 6; the log itself returns 0, 47 and 52. Markers on `__consumer_offsets` are
  answered after pending offsets are committed or dropped (KAFKA-17507).
* v2 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType


async def handle(call: NodeCall) -> Any:
    may_alter = call.is_allowed(AclOperation.ALTER, ResourceType.CLUSTER, is_logged=False)
    if not may_alter and not call.is_allowed(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return refuse(call, ErrorCode.cluster_authorization_failed)
    errors = [
        await _write(call, marker, TopicPartition(topic.name, index))
        for marker in call.request.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    ]
    remaining = iter(errors)
    return _response(call, lambda: next(remaining))


async def _write(call: NodeCall, marker: Any, name: TopicPartition) -> ErrorCode:
    return await call.node.write_marker(
        name,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        commit=marker.transaction_result,
        transaction_version=getattr(marker, "transaction_version", 0),
    )


def _response(call: NodeCall, next_error: Callable[[], ErrorCode]) -> Any:
    new = call.new
    return new.response(
        markers=tuple(
            new.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    new.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            new.WritableTxnMarkerPartitionResult(
                                partition_index=index,
                                error_code=next_error(),
                            )
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in call.request.markers
        )
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, lambda: error)
