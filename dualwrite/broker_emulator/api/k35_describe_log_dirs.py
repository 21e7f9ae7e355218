"""DescribeLogDirs (key 35), versions 1-5.

The partitions of a node and their sizes (KIP-113).

* One directory: the data directory, or `/memory`. No list means all partitions; unknown ones are omitted.
* The size is that of the record batches, as in the `.log` files. All replicas share one log, so none lags behind.
* v2 flexible; v3 top-level error; v4 total and usable bytes (KIP-827): of the disk, or of `memory.limit.bytes`. v5
  tells whether the directory is cordoned, which it never is.
* Access: DESCRIBE on the cluster (31; below v3 the response is empty).
* v5 is hidden by the profile kafka-3.9. A disk whose free space cannot be read: 56.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.cluster.topics import Partition
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, mapped
from dualwrite.broker_emulator.storage.storage import Space

_UNKNOWN = Space(-1, -1)


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER):
        return _response(call, ErrorCode.cluster_authorization_failed, ())
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
        return _response(call, ErrorCode.none, (_directory(call, ErrorCode.kafka_storage_error),))
    return _response(call, ErrorCode.none, (_directory(call, ErrorCode.none, topics, space),))


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


def _response(call: NodeCall, error: ErrorCode, results: tuple[Any, ...]) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error, results=results)


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, error, () if call.version >= 3 else (_directory(call, error),))
