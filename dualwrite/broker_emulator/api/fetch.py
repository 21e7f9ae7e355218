"""Fetch: the record batches of partitions, read by consumers and replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.topics import (
    LeaderHints,
    allowed_topic,
    check_leader_epoch,
    is_isolation_level,
    led_partition,
    requested_topic,
    topic_reference,
)
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.results import ReadResult
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, mapped
from dualwrite.broker_emulator.topics.replication import wait_for_advance
from dualwrite.broker_emulator.topics.topics import Topic

_READ_COMMITTED = 1
_LEADERS_ERRORS = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
)
"""Errors that occur in Kafka while it reads a log; others occur before."""
_NEW_SESSION, _NO_SESSION = 0, -1
_MILLISECOND = timedelta(milliseconds=1)


class _Read(NamedTuple):
    """All partitions of the request, read once."""

    results: list[ReadResult]
    logs: list[PartitionLog]
    sizes: list[int]
    """The number of bytes read from each log."""
    is_enough: bool

    @property
    def is_in_a_log(self) -> bool:
        """Whether a partition was looked up in a log, with any result."""
        return any(result.aborted != [] or result.error is NO_ERROR for result in self.results)


async def handle_fetch(call: NodeCall) -> Any:
    """Serve Fetch (key 1), versions 4-18.

    Serves whole batches from partitions that this node leads, and waits for them if there are none yet.

    * Isolation 0 reads up to the high watermark, with null abortedTransactions; isolation 1 up to the last stable
      offset, with the list. A partition that is not looked up in a log has an empty list. Any other isolation is -1.
    * A response waits until MinBytes are available, a partition has an error, or MaxWait has passed; the logs
      themselves wake it.
    * MaxBytes bounds the response and PartitionMaxBytes each partition, but the first batch of the response is always
      returned (KIP-74).
    * v5 log start offset; v9 leader epoch fencing (KIP-320: 74 / 75); v12 flexible; v13 topic ids (KIP-516; unknown
      100).
    * v7 fetch sessions (KIP-227): declined with session id 0, as by a Kafka whose cache of sessions is full. The epochs
      0 and -1 are a full fetch with any session id; any other epoch belongs to a session, which cannot exist: 70.
    * Fetching replicas are served like consumers: the nodes here share one log of each partition.
    * Access (29): READ on the topics; a replica needs CLUSTER_ACTION instead.
    * A partition that this node does not lead is 6; v16 adds the new leader (KIP-951). A long poll ends when another
      leader is elected.
    * v18 is hidden by the profile kafka-3.9, where the partitions of a request that fails as a whole have null records.
    """
    if getattr(call.request, "session_epoch", _NO_SESSION) not in (_NEW_SESSION, _NO_SESSION):
        return await call.refused(ErrorCode.fetch_session_id_not_found)
    read = await _read(call)
    if read.is_in_a_log and not is_isolation_level(call.request.isolation_level):
        return await call.made(_refuse_isolation, call)
    max_wait_ms = call.request.max_wait // _MILLISECOND
    if not read.is_enough and max_wait_ms > 0:
        read = await _read_when_enough(call, read, max_wait_ms / 1000)
    for log, size in zip(read.logs, read.sizes, strict=True):
        log.traffic.bytes_out += size
    hints = LeaderHints(call, [result.error for result in read.results])
    named = ((topic, requested.partition) for topic in call.request.topics for requested in topic.partitions)
    read_of = zip(named, read.results, strict=True)
    rows = await mapped(lambda row: _partition_data(call.new, row[0][0], row[0][1], row[1], hints), read_of)
    return await call.made(_build, call, NO_ERROR, iter(rows), hints.for_response())


async def _read_when_enough(call: NodeCall, read: _Read, max_wait_s: float) -> _Read:
    """Read again whenever a log has advanced, until there is enough data or the time is up."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + max_wait_s
    while not read.is_enough and loop.time() < deadline_s:
        await wait_for_advance(read.logs, deadline_s)
        read = await _read(call)
    return read


async def _read(call: NodeCall) -> _Read:
    request = call.request
    most = call.node.quotas.most_fetched(call) if call.cluster.quotas.is_active else request.max_bytes
    most = min(most, call.cluster.config.fetch_max_bytes)
    results: list[ReadResult] = []
    logs: list[PartitionLog] = []
    sizes: list[int] = []
    size = 0
    pace = Pace()
    for topic in request.topics:
        for requested in topic.partitions:
            await pace.keep()
            log, error = _led_log(call, topic, requested)
            if log is None:
                results.append(_failed(error))
                continue
            result = log.read(
                requested.fetch_offset,
                max_bytes=max(0, min(most - size, requested.partition_max_bytes)),
                read_committed=request.isolation_level == _READ_COMMITTED,
                at_least_one=size == 0,
            )
            size += len(result.records)
            logs.append(log)
            sizes.append(len(result.records))
            results.append(result)
    failed = any(result.error is not NO_ERROR for result in results)
    return _Read(results, logs, sizes, failed or not logs or size >= min(request.min_bytes, most))


def _led_log(call: NodeCall, topic: Any, requested: Any) -> tuple[PartitionLog | None, ErrorCode]:
    known, error = _allowed_topic(call, topic)
    if known is None:
        return None, error
    partition, error = led_partition(call, known, requested.partition)
    if partition is None:
        return None, error
    error = check_leader_epoch(partition, requested)
    return (partition.log, error) if error is NO_ERROR else (None, error)


def _allowed_topic(call: NodeCall, topic: Any) -> tuple[Topic | None, ErrorCode]:
    if not _is_from_replica(call.request):
        return allowed_topic(call, topic, AclOperation.READ)
    if not call.is_allowed(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return None, ErrorCode.topic_authorization_failed
    return requested_topic(call, topic)


def _is_from_replica(request: Any) -> bool:
    replica_id: int = request.replica_id if hasattr(request, "replica_id") else request.replica_state.replica_id
    return replica_id >= 0


def _failed(error: ErrorCode) -> ReadResult:
    """Return the result of a partition with an error, with Kafka's list of aborted transactions."""
    return ReadResult(error, b"", None if error in _LEADERS_ERRORS else [], -1, -1, -1)


def _response(call: NodeCall, error: ErrorCode, of_partitions: ErrorCode) -> Any:
    """Build a response with one error, and one for each partition."""
    hints, failed = LeaderHints(call, ()), _failed(of_partitions)
    has_records = error is NO_ERROR or call.cluster.config.behaviours.refused_partitions_have_records
    topics = call.request.topics
    rows = (
        _partition_data(call.new, topic, requested.partition, failed, hints, has_records=has_records)
        for topic in topics
        for requested in topic.partitions
    )
    return _build(call, error, rows, {})


def _build(call: NodeCall, error: ErrorCode, rows: Iterator[Any], leaders: Mapping[str, Any]) -> Any:
    """Build the response with one row for each partition, in the order of the request, and the `leaders` it names."""
    new = call.new
    return new.response(
        error_code=error,
        session_id=0,
        responses=tuple(
            new.FetchableTopicResponse(**topic_reference(topic), partitions=tuple(islice(rows, len(topic.partitions))))
            for topic in call.request.topics
        ),
        **leaders,
    )


def _partition_data(
    new: Any, topic: Any, index: int, result: ReadResult, hints: LeaderHints, *, has_records: bool = True
) -> Any:
    aborted = result.aborted
    return new.PartitionData(
        partition_index=index,
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else tuple(
            new.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in aborted
        ),
        records=result.records if has_records else None,
        **hints.for_partition(topic, index, result.error),
    )


def refuse_fetch(call: NodeCall, error: ErrorCode) -> Any:
    # from v7 on, a top-level error comes without partitions; before, only partitions have an error
    if call.version >= 7:
        return call.new.response(error_code=error, session_id=0, responses=())
    return _response(call, error, error)


def _refuse_isolation(call: NodeCall) -> Any:
    """Return Kafka's response when it fails: from v13 on without partitions, before with one error for each."""
    error = ErrorCode.unknown_server_error
    return refuse_fetch(call, error) if call.version >= 13 else _response(call, error, error)


def refuse_fetch_partitions(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, NO_ERROR, error)
