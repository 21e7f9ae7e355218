"""The log directories of a node: described, and chosen for replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, mapped, mapped_rows
from dualwrite.broker_emulator.storage.storage import Space
from dualwrite.broker_emulator.topics.topics import Partition

_UNKNOWN = Space(-1, -1)


async def handle_describe_log_dirs(call: NodeCall) -> Any:
    """Serve DescribeLogDirs (key 35), versions 1-5.

    The partitions of a node and their sizes (KIP-113).

    * One directory: the data directory, or `/memory`. No list means all partitions; unknown ones are omitted.
    * The size is that of the record batches, as in the `.log` files. All replicas share one log, so none lags behind.
    * v2 flexible; v3 top-level error; v4 total and usable bytes (KIP-827): of the disk, or of `memory.limit.bytes`. v5
      tells whether the directory is cordoned, which it never is.
    * Access: DESCRIBE on the cluster (31; below v3 the response is empty).
    * v5 is hidden by the profile kafka-3.9. A disk whose free space cannot be read: 56.
    """
    if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER):
        return call.new.response(error_code=ErrorCode.cluster_authorization_failed, results=())
    by_topic: dict[str, list[Partition]] = {}
    pace = Pace()
    for partition in _requested_partitions(call):
        await pace.keep()
        if call.node.node_id in partition.replicas:
            by_topic.setdefault(partition.topic.name, []).append(partition)
    rows = iter(await mapped(lambda partition: _row(call, partition), chain.from_iterable(by_topic.values())))
    topics = tuple(
        call.new.DescribeLogDirsTopic(name=name, partitions=tuple(islice(rows, len(partitions))))
        for name, partitions in by_topic.items()
    )
    try:
        space = call.cluster.storage.space()
    except OSError:
        return call.new.response(error_code=ErrorCode.none, results=(_directory(call, ErrorCode.kafka_storage_error),))
    return call.new.response(error_code=ErrorCode.none, results=(_directory(call, ErrorCode.none, topics, space),))


def _requested_partitions(call: NodeCall) -> Iterator[Partition]:
    if call.request.topics is None:
        yield from list(call.cluster.partitions())
        return
    names = {(topic.topic, index): None for topic in call.request.topics for index in topic.partitions}
    for topic, index in names:
        partition = call.cluster.partition(topic, index)
        if partition is not None:
            yield partition


def _row(call: NodeCall, partition: Partition) -> Any:
    return call.new.DescribeLogDirsPartition(
        partition_index=partition.index, partition_size=partition.log.size_bytes, offset_lag=0, is_future_key=False
    )


def _directory(call: NodeCall, error: ErrorCode, topics: tuple[Any, ...] = (), space: Space = _UNKNOWN) -> Any:
    return call.new.DescribeLogDirsResult(
        error_code=error, log_dir=call.cluster.storage.log_dir, topics=topics, is_cordoned=False, **space._asdict()
    )


def refuse_describe_log_dirs(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, results=() if call.version >= 3 else (_directory(call, error),))


_LONGEST_FOLDER_NAME = 255
_FUTURE_SUFFIX = "." + "0" * 32 + "-future"
"""The folder suffix of a replica that Kafka is moving."""


async def handle_alter_replica_log_dirs(call: NodeCall) -> Any:
    """Serve AlterReplicaLogDirs (key 34), versions 1-2.

    Moves a node's replicas to another of its directories (KIP-113). A node has only one directory here, so replicas
    cannot move: the directory that DescribeLogDirs returns is accepted without effect.

    * Another directory 57. A name too long for a folder 17. Unknown partition 3; no replica on this node 9.
    * Access: ALTER on the cluster (31).
    * v2 flexible.
    """
    call.require(AclOperation.ALTER, ResourceType.CLUSTER)
    named = [
        (directory.path, topic.name, index)
        for directory in call.request.dirs
        for topic in directory.topics
        for index in topic.partitions
    ]
    return await call.made(_moved_response, call, await mapped_rows(lambda each: _move(call, *each), named))


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


def _moved_response(call: NodeCall, outcome: Callable[[str, str, int], ErrorCode]) -> Any:
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
    return call.new.response(results=results)


def refuse_alter_replica_log_dirs(call: NodeCall, error: ErrorCode) -> Any:
    return _moved_response(call, lambda path, topic, index: error)
