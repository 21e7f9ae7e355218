"""DescribeQuorum (key 55), versions 0-2.

The nodes that store the metadata of the cluster (KIP-595). It is not replicated here: the node that acts as controller
is the only voter, the other living nodes are observers, and each has all metadata.

* Any partition but `__cluster_metadata`-0 is 3.
* Access: DESCRIBE on the cluster (31).
* v1 fetch times (KIP-836), v2 error messages, directories and the nodes' listeners (KIP-853).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.cluster.cluster import ClusterNode
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped_rows

METADATA_TOPIC = "__cluster_metadata"
_METADATA_PARTITION = (METADATA_TOPIC, 0)


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    named = [(topic.topic_name, row.partition_index) for topic in call.request.topics for row in topic.partitions]
    is_answered = _METADATA_PARTITION in named
    # all rows are of this moment, however long they take to make
    quorum = _quorum(call) if is_answered else None
    voters = [node for node in call.cluster.living_nodes if node.node_id == call.cluster.controller_id]
    nodes = tuple(_node(call, node) for node in voters) if is_answered and call.version >= 2 else ()
    rows = await mapped_rows(lambda name: quorum if name == _METADATA_PARTITION else _unknown(call, name[1]), named)
    return await call.made(_response, call, rows, nodes)


def _response(call: NodeCall, next_row: Callable[[], Any], nodes: tuple[Any, ...]) -> Any:
    topics = tuple(
        call.new.TopicData(topic_name=topic.topic_name, partitions=tuple(next_row() for _ in topic.partitions))
        for topic in call.request.topics
    )
    return call.new.response(error_code=ErrorCode.none, error_message="", topics=topics, nodes=nodes)


def _quorum(call: NodeCall) -> Any:
    cluster = call.cluster
    controller_id = cluster.controller_id
    # the metadata has no offsets here: the epoch of the features serves as one, because all nodes agree on it
    offset = cluster.finalized_features_epoch
    replicas = {node.node_id: _replica(call, node.node_id, offset) for node in cluster.living_nodes}
    return _row(
        call,
        0,
        ErrorCode.none,
        leader_id=controller_id,
        leader_epoch=1,
        high_watermark=offset,
        current_voters=(replicas.pop(controller_id),),
        observers=tuple(replicas.values()),
    )


def _replica(call: NodeCall, node_id: int, offset: int) -> Any:
    now_ms = call.cluster.clock.now_ms()
    return call.new.ReplicaState(
        replica_id=node_id,
        replica_directory_id=uuid.uuid5(uuid.NAMESPACE_OID, f"{call.cluster.cluster_id} {node_id}"),
        log_end_offset=offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )


def _node(call: NodeCall, node: ClusterNode) -> Any:
    endpoint = call.endpoint(node)
    listener = call.new.Listener(name="CONTROLLER", host=endpoint.host, port=endpoint.port)
    return call.new.Node(node_id=node.node_id, listeners=(listener,))


def _unknown(call: NodeCall, index: int) -> Any:
    return _row(call, index, ErrorCode.unknown_topic_or_partition)


def _row(call: NodeCall, index: int, error: ErrorCode, **values: Any) -> Any:
    defaults = {"leader_id": 0, "leader_epoch": 0, "high_watermark": 0, "current_voters": (), "observers": ()}
    message = "" if error is ErrorCode.none else "This server does not host this topic-partition."
    fields = {**defaults, **values}
    return call.new.PartitionData(partition_index=index, error_code=error, error_message=message, **fields)


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, error_message=None, topics=(), nodes=())
