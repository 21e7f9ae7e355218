"""AlterReplicaLogDirs (key 34), versions 1-2.

Moves a node's replicas to another of its directories (KIP-113). A node has only one directory here, so replicas cannot
move: the directory that DescribeLogDirs returns is accepted without effect.

* Another directory 57. A name too long for a folder 17. Unknown partition 3; no replica on this node 9.
* Access: ALTER on the cluster (31).
* v2 flexible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped_rows

_LONGEST_FOLDER_NAME = 255
_FUTURE_SUFFIX = "." + "0" * 32 + "-future"
"""The folder suffix of a replica that Kafka is moving."""


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.ALTER, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    named = [
        (directory.path, topic.name, index)
        for directory in call.request.dirs
        for topic in directory.topics
        for index in topic.partitions
    ]
    return await call.made(_response, call, await mapped_rows(lambda each: _move(call, *each), named))


def _move(call: NodeCall, path: str, topic: str, index: int) -> ErrorCode:
    if len(f"{topic}-{index}{_FUTURE_SUFFIX}") > _LONGEST_FOLDER_NAME:
        return ErrorCode.invalid_topic_exception
    if path != call.cluster.storage.log_dir:
        return ErrorCode.log_dir_not_found
    partition = call.cluster.partition(topic, index)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition
    has_copy = call.node.node_id in partition.replicas
    return ErrorCode.none if has_copy else ErrorCode.replica_not_available


def _response(call: NodeCall, outcome: Callable[[str, str, int], ErrorCode]) -> Any:
    by_topic: dict[str, list[Any]] = {}
    for directory in call.request.dirs:
        for topic in directory.topics:
            rows = by_topic.setdefault(topic.name, [])
            for index in topic.partitions:
                error = outcome(directory.path, topic.name, index)
                rows.append(call.new.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error))
    results = tuple(
        call.new.AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(rows))
        for name, rows in by_topic.items()
    )
    return call.new.response(throttle_time=NO_THROTTLE, results=results)


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, lambda path, topic, index: error)
