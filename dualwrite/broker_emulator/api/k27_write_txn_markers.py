"""WriteTxnMarkers (key 27), versions 1-2.

Ends transactions on partitions that this node leads, for their coordinator. An operator sends it too, to abort a
hanging transaction.

* v1 flexible; v2 adds the version of the transaction (KIP-1228), which determines whether a marker's epoch must be
  newer than the partition's or may be equal. v1 markers follow the old rule.
* Access: ALTER or CLUSTER_ACTION on the cluster (31).
* Unknown partition 3, led by another node 6; the log itself returns 0, 47 and 52. The response to markers on
  `__consumer_offsets` follows when pending offsets are committed or dropped (KAFKA-17507).
* Producer id -1 and epoch -1 are -1 for the whole request: Kafka fails while it builds such a marker, after it has
  written the markers before it. A marker without partitions gets no row.
* v2 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace
from dualwrite.broker_emulator.transactions.ports import Marker

_Results = dict[int, dict[str, dict[int, ErrorCode]]]
"""Errors by producer id, topic and partition."""


async def handle(call: NodeCall) -> Any:
    may_alter = call.is_allowed(AclOperation.ALTER, ResourceType.CLUSTER, is_logged=False)
    if not may_alter and not call.is_allowed(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    results: _Results = {}
    pace = Pace()
    for marker in call.request.markers:
        await pace.keep()
        names = _names(marker)
        if -1 in (marker.producer_id, marker.producer_epoch) and any(_is_led(call, name) for name in names):
            return await call.refused(ErrorCode.unknown_server_error)
        for name in names:
            await pace.keep()
            error = await _write(call, marker, name)
            results.setdefault(marker.producer_id, {}).setdefault(name.topic, {})[name.partition] = error
    return await call.made(_response, call, results)


def _names(marker: Any) -> Iterable[TopicPartition]:
    """Return each partition of the marker once."""
    return dict.fromkeys(
        TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes
    )


def _is_led(call: NodeCall, name: TopicPartition) -> bool:
    partition = call.cluster.partition(*name)
    return partition is not None and partition.leader_id == call.node.node_id


async def _write(call: NodeCall, marker: Any, name: TopicPartition) -> ErrorCode:
    wanted = Marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        commit=marker.transaction_result,
        transaction_version=getattr(marker, "transaction_version", 0),
    )
    error = call.node.write_marker(name, wanted)
    return error if isinstance(error, ErrorCode) else await error


def _response(call: NodeCall, results: _Results) -> Any:
    new = call.new
    return new.response(
        markers=tuple(
            new.WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=tuple(
                    new.WritableTxnMarkerTopicResult(
                        name=name,
                        partitions=tuple(
                            new.WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                            for index, error in errors.items()
                        ),
                    )
                    for name, errors in topics.items()
                ),
            )
            for producer_id, topics in results.items()
        )
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    results: _Results = {}
    for marker in call.request.markers:
        topics: dict[str, dict[int, ErrorCode]] = {}
        for topic in marker.topics:
            topics.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes, error))
        results[marker.producer_id] = topics
    return _response(call, results)
