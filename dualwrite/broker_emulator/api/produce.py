"""Produce: the record batches of clients, appended to the logs of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.internal_records import why_unreadable
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.topics import LeaderHints, allowed_topic, topic_reference
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.log.compression import ZSTD
from dualwrite.broker_emulator.log.record_batch import TRANSACTIONAL, BatchHeader
from dualwrite.broker_emulator.log.results import AppendResult
from dualwrite.broker_emulator.log.validation import (
    CheckedContents,
    ProducedBatch,
    check_contents_at_once,
    check_contents_in_thread,
    read_produced,
)
from dualwrite.broker_emulator.log.verification import VerificationGuard
from dualwrite.broker_emulator.messages.call import CloseConnectionError
from dualwrite.broker_emulator.security.acl import AclOperation
from dualwrite.broker_emulator.slices import Pace, mapped
from dualwrite.broker_emulator.topics.replication import lacks_replicas, wait_until_replicated
from dualwrite.broker_emulator.topics.topics import Partition, TopicPartition

_IMPLICIT_ADD_VERSION = 12
_ZSTD_VERSION = 7
_ALL_REPLICAS = -1
_ACKS = (_ALL_REPLICAS, 0, 1)
_ADMIN_CLIENT: Final = "__admin_client"
"""The client id that may write internal topics: a protection against mistakes, not against malice."""
_WRITE = AclOperation.WRITE  # fast to read (see `error_codes.py`)
_error = attrgetter("error")

_NOT_ENOUGH_REPLICAS = dict.fromkeys(
    (
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    ),
    ErrorCode.not_enough_replicas,
)
_COMMON = {
    **_NOT_ENOUGH_REPLICAS,
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
    ErrorCode.cluster_authorization_failed: ErrorCode.invalid_txn_state,
}
_VERIFIED = {**_COMMON, ErrorCode.concurrent_transactions: ErrorCode.not_enough_replicas}

DEFAULT_ERROR = {**_VERIFIED, ErrorCode.transaction_abortable: ErrorCode.invalid_txn_state}
GENERIC_ERROR_SUPPORTED = _VERIFIED
ADD_PARTITION = _COMMON
"""The errors of the coordinator as clients of v3-10, v11 and v12+ get them; other codes stay as they are."""


def error_table(version: int) -> Mapping[ErrorCode, ErrorCode]:
    """Return the error table of a request version."""
    if version >= _IMPLICIT_ADD_VERSION:
        return ADD_PARTITION
    return GENERIC_ERROR_SUPPORTED if version == 11 else DEFAULT_ERROR


class _Write(NamedTuple):
    """One partition of the request."""

    produced: ProducedBatch
    partition: Partition | None
    """None if there is an error."""
    error: ErrorCode
    leader_epoch: int = -1
    """The leader epoch when the request came: an append under an earlier epoch is fenced. -1: led by another node."""


class _Verified(NamedTuple):
    """The result of verification: a guard for each partition, and the client's error for each refused one."""

    guards: Mapping[TopicPartition, VerificationGuard]
    refused: Mapping[TopicPartition, ErrorCode]


_NOTHING_TO_VERIFY = _Verified({}, {})


async def handle_produce(call: NodeCall) -> Any:
    """Serve Produce (key 0), versions 3-13.

    Versions 0-2 are advertised, because old clients request them (KAFKA-18659), but not served.

    Appends record batches of magic 2, unchanged, to partitions that this node leads.

    * v3 transactional id; v8 error details, with the bad records of a batch (KIP-467); v9 flexible; v11 may return 120;
      v12 adds the partition to the transaction implicitly (KIP-890 part 2); v13 names topics by id (KIP-516).
    * A transactional batch for a partition without an open transaction of its (producer id, epoch) goes through the
      coordinator first: below v12 the coordinator verifies the partition (unless
      `transaction.partition.verification.enable` is false), from v12 on it adds it. The tables below translate its
      errors. From v12 on, 51 is retried here every 20 ms for at most 100 ms (KAFKA-18654), because the previous
      transaction's markers are usually on their way.
    * The checks, in Kafka's order: 2 for the whole request if a first batch is corrupt; 53 for the whole request if a
      batch is transactional, without a transactional id that the client may use; for each partition 29 and 3, 87 unless
      it gets exactly one batch, 2 if the bytes after it begin no batch; 49 for the whole request with batches of more
      than one (producer id, epoch); the coordinator's errors; 21; 17 for an internal topic; 6; then those of the log.
    * A transactional batch without a producer id (below 0) belongs to no transaction and is appended without
      verification.
    * 47 without asking the coordinator for an epoch below the last one of the partition (KAFKA-19690; not in
      kafka-3.9).
    * Only the coordinators and clients with the id `__admin_client` write internal topics, as in Kafka.
    * A partition that this node does not lead, or no longer leads once the coordinator has responded: 6, from v10 on
      with the new leader (KIP-951).
    * acks=-1 with fewer in-sync replicas than `min.insync.replicas` is 19. It waits for the high watermark: 7 after the
      timeout of the request, 6 if another leader is elected.
    * Access (29, 53): WRITE on the topics; if a batch is transactional, on the transactional id too, for the whole
      request.
    * acks other than -1, 0, 1 is 21, after the verification: a partition may have been added to the transaction by
      then. With acks=0 there is no response; an error then closes the connection, as in Kafka.
    * Hidden by profile: v12+ in kafka-3.9.
    """
    named = _named(call)
    writes = await mapped(partial(_write, call), named)
    refused = _refused_as_a_whole(call, writes)
    if refused is not None:
        return _refuse_all(call, refused)
    unverified = _transactional(writes)
    if len(unverified) > 1 and len({(header.producer_id, header.producer_epoch) for _, header in unverified}) > 1:
        return _refuse_all(call, _TWO_PRODUCERS)
    verified = await _verify(call, unverified) if unverified else _NOTHING_TO_VERIFY
    results = await _append_all(call, writes, verified)
    if call.request.acks == _ALL_REPLICAS and any(map(_is_behind, writes)):
        results = await _replicated(call, writes, results)
    return await _response(call, named, results)


_Named = tuple[Any, Any]
"""A topic of the request with one of its partitions."""


def _named(call: NodeCall) -> list[_Named]:
    """Return each topic of the request with each of its partitions."""
    return [(topic, data) for topic in call.request.topic_data for data in topic.partition_data]


_FORBIDDEN = AppendResult(ErrorCode.transactional_id_authorization_failed)
_TWO_PRODUCERS = AppendResult(
    ErrorCode.invalid_producer_id_mapping,
    error_message="Transactional records contained more than one producer ID",
)


def _refused_as_a_whole(call: NodeCall, writes: list[_Write]) -> AppendResult | None:
    """Return the result of every partition if the request fails as a whole, for any topics.

    Kafka reads first batches only until one is transactional.
    """
    for write in writes:
        batch = write.produced
        if batch.header is None and batch.is_corrupt:
            return AppendResult(batch.error, error_message=batch.problem)
        if batch.header is not None and batch.header.attributes & TRANSACTIONAL:
            name = call.request.transactional_id
            return None if name is not None and call.may_write_id(name) else _FORBIDDEN
    return None


def _write(call: NodeCall, named: _Named) -> _Write:
    requested, data = named
    index = data.index
    produced = read_produced(data.records)
    topic, error = allowed_topic(call, requested, _WRITE)
    if topic is None:
        return _Write(produced, None, error)
    if not 0 <= index < len(topic.partitions):
        return _Write(produced, None, ErrorCode.unknown_topic_or_partition)
    if produced.error is not NO_ERROR:
        return _Write(produced, None, produced.error)
    if call.version < _ZSTD_VERSION and produced.header is not None and produced.header.compression == ZSTD:
        return _Write(produced, None, ErrorCode.unsupported_compression_type)  # KIP-110
    partition = topic.partitions[index]
    is_led = partition.leader_id == call.node.node_id
    return _Write(produced, partition, NO_ERROR, partition.log.leader_epoch if is_led else -1)


def _transactional(writes: list[_Write]) -> list[tuple[Partition, BatchHeader]]:
    """Return the partitions that get a batch of a transaction, with the headers of their batches."""
    return [
        (partition, produced.header)
        for produced, partition, _, leader_epoch in writes
        if partition is not None
        and leader_epoch >= 0
        and produced.header is not None
        and produced.header.attributes & TRANSACTIONAL
        and produced.header.producer_id >= 0
    ]


async def _verify(call: NodeCall, written: list[tuple[Partition, BatchHeader]]) -> _Verified:
    """Send the partitions to the coordinator; from v12 on, retry while it returns 51 and there is time."""
    waited_ms = 0
    while True:
        guards, refused = await _verify_once(call, written)
        if not refused:
            return _Verified(guards, refused)
        is_concurrent = ErrorCode.concurrent_transactions in refused.values()
        if not is_concurrent or call.version < _IMPLICIT_ADD_VERSION or waited_ms >= _max_retry_ms(call):
            break
        backoff_ms = call.cluster.config.add_partitions_to_txn_retry_backoff_ms
        await asyncio.sleep(backoff_ms / 1000)
        waited_ms += backoff_ms
    table = error_table(call.version)
    return _Verified(guards, {name: table.get(error, error) for name, error in refused.items()})


def _max_retry_ms(call: NodeCall) -> int:
    """Return how long to retry at the coordinator."""
    timeout_ms: int = call.request.timeout // timedelta(milliseconds=1)
    return min(call.cluster.config.add_partitions_to_txn_retry_backoff_max_ms, timeout_ms)


async def _verify_once(
    call: NodeCall, written: list[tuple[Partition, BatchHeader]]
) -> tuple[dict[TopicPartition, VerificationGuard], dict[TopicPartition, ErrorCode]]:
    """Send one request to the coordinator, and return the guards and the errors.

    The guards are taken before the request, so that a marker written meanwhile invalidates them. Without
    `transaction.partition.verification.enable`, requests below v12 are not verified.
    """
    adds = call.version >= _IMPLICIT_ADD_VERSION
    is_verified = adds or call.node.config.transaction_partition_verification_enable
    guards: dict[TopicPartition, VerificationGuard] = {}
    refused: dict[TopicPartition, ErrorCode] = {}
    for partition, header in written:
        log = partition.log
        if is_verified and log.fences_verification(header.producer_id, header.producer_epoch):
            refused[partition.name] = ErrorCode.invalid_producer_epoch
            continue
        guard = log.begin_verification(
            header.producer_id, header.producer_epoch, header.base_sequence, supports_epoch_bump=adds
        )
        if guard is not VerificationGuard.SENTINEL:
            guards[partition.name] = guard
    if not guards or not is_verified:
        return guards, refused
    header = written[0][1]
    errors = await call.node.add_partitions_to_txn.add_or_verify(
        call.request.transactional_id, header.producer_id, header.producer_epoch, guards, add=adds
    )
    if any(errors.values()):
        refused |= {name: error for name, error in errors.items() if error is not NO_ERROR}
    return guards, refused


async def _append_all(call: NodeCall, writes: list[_Write], verified: _Verified) -> list[AppendResult]:
    """Append each batch once its records are checked, which may have to leave the event loop."""
    results: list[AppendResult] = []
    pace = Pace()
    for write in writes:
        if results:
            await pace.keep()
        produced, partition, error, _ = write
        if partition is None or produced.header is None:
            results.append(AppendResult(error))
            continue
        now_ms = call.cluster.clock.now_ms()
        asked = produced.header, produced.records, partition.log.config, now_ms, partition.name
        contents = check_contents_at_once(*asked)
        if contents is None:
            contents = await check_contents_in_thread(*asked)
            now_ms = call.cluster.clock.now_ms()
        results.append(_append(call, write, partition, verified, contents, now_ms))
    return results


def _append(
    call: NodeCall,
    write: _Write,
    partition: Partition,
    verified: _Verified,
    contents: CheckedContents,
    now_ms: int,
) -> AppendResult:
    unverified = verified.refused.get(partition.name)
    if unverified is not None:
        return AppendResult(unverified)
    error = _error_before_append(call, write, partition)
    if error is not None:
        start = partition.log.log_start_offset if error is ErrorCode.not_enough_replicas else -1
        return AppendResult(error, log_start_offset=start)
    problem = why_unreadable(partition.topic.name, write.produced.records) if partition.topic.is_internal else None
    if problem is not None:
        return AppendResult(ErrorCode.invalid_record, error_message=problem)
    return partition.log.append(
        write.produced.records,
        now_ms=now_ms,
        guard=verified.guards.get(partition.name),
        contents=contents,
    )


def _error_before_append(call: NodeCall, write: _Write, partition: Partition) -> ErrorCode | None:
    """Return the error of a write that does not reach the log, or None."""
    if call.request.acks not in _ACKS:
        return ErrorCode.invalid_required_acks
    if partition.topic.is_internal and call.client_id != _ADMIN_CLIENT:
        return ErrorCode.invalid_topic_exception
    if not partition.is_led_by(call.node.node_id, write.leader_epoch):
        return ErrorCode.not_leader_or_follower
    is_short = call.request.acks == _ALL_REPLICAS and lacks_replicas(partition, call.cluster.nodes)
    return ErrorCode.not_enough_replicas if is_short else None


def _is_behind(write: _Write) -> bool:
    """Return whether the appended batch may not be replicated yet."""
    return write.partition is not None and not write.partition.log.is_replicated


async def _replicated(call: NodeCall, writes: list[_Write], results: list[AppendResult]) -> list[AppendResult]:
    """Wait for the replication of every batch (acks=all), and return the results with the errors of the wait."""
    deadline_s = asyncio.get_running_loop().time() + call.request.timeout.total_seconds()
    replicated = []
    for write, result in zip(writes, results, strict=True):
        error = NO_ERROR
        header = write.produced.header
        if write.partition is not None and header is not None and result.error is NO_ERROR:
            left_s = deadline_s - asyncio.get_running_loop().time()
            end_offset = result.base_offset + header.last_offset_delta + 1
            error = await wait_until_replicated(write.partition, end_offset, write.leader_epoch, left_s)
        replicated.append(result if error is NO_ERROR else AppendResult(error))
    return replicated


async def _response(call: NodeCall, named: list[_Named], results: list[AppendResult]) -> Any:
    if call.request.acks == 0:
        errors = {result.error for result in results} - {NO_ERROR}
        if errors:
            raise CloseConnectionError(f"Produce with acks=0 failed: {', '.join(error.name for error in errors)}")
        return None
    hints = LeaderHints(call, map(_error, results))
    rows = iter(await mapped(partial(_row, call.new, hints), zip(named, results, strict=True)))
    topics = await mapped(partial(_topic, call.new, rows), call.request.topic_data)
    return _build(call, topics, hints)


def refuse_produce(call: NodeCall, error: ErrorCode) -> Any:
    return _refuse_all(call, AppendResult(error))


def _refuse_all(call: NodeCall, result: AppendResult) -> Any:
    if call.request.acks == 0:
        raise CloseConnectionError(f"Produce with acks=0 failed: {result.error.name}")
    hints = LeaderHints(call, ())
    rows = (_row(call.new, hints, (named, result)) for named in _named(call))
    return _build(call, [_topic(call.new, rows, topic) for topic in call.request.topic_data], hints)


def _build(call: NodeCall, topics: Sequence[Any], hints: LeaderHints) -> Any:
    return call.new.response(responses=tuple(topics), **hints.for_response())


def _topic(new: Any, rows: Iterator[Any], topic: Any) -> Any:
    """Return the row of a topic with the next rows of partitions, one for each in the request."""
    return new.TopicProduceResponse(
        **topic_reference(topic), partition_responses=tuple(islice(rows, len(topic.partition_data)))
    )


def _row(new: Any, hints: LeaderHints, answered: tuple[_Named, AppendResult]) -> Any:
    (topic, data), result = answered
    return new.PartitionProduceResponse(
        index=data.index,
        error_code=result.error,
        base_offset=result.base_offset,
        log_append_time=None
        if result.log_append_time_ms < 0
        else datetime.fromtimestamp(result.log_append_time_ms / 1000, UTC),
        log_start_offset=result.log_start_offset,
        record_errors=_record_errors(new, result) if result.bad_records else (),
        error_message=result.error_message,
        **hints.for_partition(topic, data.index, result.error),
    )


def _record_errors(new: Any, result: AppendResult) -> tuple[Any, ...]:
    """Return the bad records; versions below 8 do not have them."""
    if not hasattr(new, "BatchIndexAndErrorMessage"):
        return ()
    return tuple(
        new.BatchIndexAndErrorMessage(batch_index=bad.batch_index, batch_index_error_message=bad.problem)
        for bad in result.bad_records
    )
