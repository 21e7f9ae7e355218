"""The partitions of transactions: added, verified, and ended by markers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.messages.call import CloseConnectionError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, all_done, mapped
from dualwrite.broker_emulator.topics.topics import OFFSETS_TOPIC, TopicPartition
from dualwrite.broker_emulator.transactions.ports import Marker

_MANY_TRANSACTIONS_VERSION = 4

_Errors = Mapping[TopicPartition, ErrorCode]
_Transaction = tuple[Any, tuple[Any, ...]]
"""A transaction of the request, and the rows of its topics."""


async def handle_add_partitions_to_txn(call: NodeCall) -> Any:
    """Serve AddPartitionsToTxn (key 24), versions 0-5.

    Makes partitions part of a transaction.

    * v0-3: one transaction, from clients, which need WRITE on the transactional id (53). Internal topics, and topics
      that the client may not WRITE, are 29, unknown ones 3; then no partition is added, and the others get 55. v2 may
      return 90 (below, it is sent as 47); v3 flexible.
    * v4-5: several transactions, from brokers (KIP-890), which need CLUSTER_ACTION (31); each adds partitions, or with
      VerifyOnly only verifies them. v5 may return 120. All are processed concurrently and answered in one response.
      Unknown partitions are 3, and the other partitions 55, also for VerifyOnly. 35 for the whole request if the log of
      a cluster at `transaction.version` 0 cannot store an addition. Transactions with one id each apply to the
      partitions of the last of them; an error of all partitions has the rows of the first.
    * v0-3 is recorded as a TV0 transaction, v4+ as TV2. The transaction begins even without partitions.
    """
    if call.version >= _MANY_TRANSACTIONS_VERSION:
        call.require(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
        return await _transactions(call, call.request.transactions)
    request = call.request
    call.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
    names = await _added_names(request.v3_and_below_topics)
    errors = await _add(
        call,
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        names,
        transaction_version=0,
    )
    if isinstance(errors, ErrorCode):
        errors = call.fenced_since(2, errors)
    return _single(call, await _topic_results(call, request.v3_and_below_topics, errors))


async def _transactions(call: NodeCall, transactions: Sequence[Any]) -> Any:
    """Process all transactions. One that waits for the replication of its record must not delay the others."""
    first = {each.transactional_id: each.topics for each in reversed(transactions)}
    last = {each.transactional_id: each.topics for each in transactions}
    for named in (first, last):
        # an id named very often multiplies its partitions
        counts = dict(zip(named, await mapped(_count, named.values()), strict=True))
        if sum([counts[each.transactional_id] for each in transactions]) > call.cluster.config.max_request_elements:
            raise CloseConnectionError("its transactions of one id have more partitions than max.request.elements")
    pace = Pace()
    names = {}
    for id, topics in last.items():
        await pace.keep()
        names[id] = await _added_names(topics)
    results = await all_done(_transaction(call, each, names[each.transactional_id]) for each in transactions)
    if ErrorCode.unsupported_version in results:
        return await call.refused(ErrorCode.unsupported_version)
    rows = []
    for transaction, errors in zip(transactions, results, strict=True):
        await pace.keep()
        rows.append((transaction, await _topic_results(call, first[transaction.transactional_id], errors)))
    return await call.made(_many, call, rows, NO_ERROR)


async def _transaction(call: NodeCall, transaction: Any, names: list[TopicPartition]) -> ErrorCode | _Errors:
    identity = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
    if not transaction.verify_only:
        return await _add(call, *identity, names, transaction_version=2)
    return await _not_attempted(call, names) or call.node.transactions.verify_partitions(*identity, names)


async def _add(
    call: NodeCall,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    names: list[TopicPartition],
    *,
    transaction_version: int,
) -> ErrorCode | _Errors:
    """Add partitions; return one error for all of them, or an error for each if one of them cannot be added."""
    errors = await _not_attempted(call, names)
    if errors:
        return errors
    return await call.node.transactions.add_partitions(
        transactional_id, producer_id, producer_epoch, names, transaction_version=transaction_version
    )


async def _not_attempted(call: NodeCall, names: list[TopicPartition]) -> _Errors:
    """Return the error of each partition if one of them cannot be in a transaction; otherwise an empty mapping."""
    checked = await mapped(partial(_check, call), names)
    if not any(checked):
        return {}
    not_attempted = ErrorCode.operation_not_attempted
    return {name: not_attempted if error is NO_ERROR else error for name, error in zip(names, checked, strict=True)}


def _check(call: NodeCall, name: TopicPartition) -> ErrorCode:
    """Return the error that keeps a partition out of a transaction, or NONE. Only brokers may add internal ones."""
    if call.version < _MANY_TRANSACTIONS_VERSION and not _may_write(call, name.topic):
        return ErrorCode.topic_authorization_failed
    partition = call.cluster.partition(*name)
    return ErrorCode.unknown_topic_or_partition if partition is None else NO_ERROR


def _may_write(call: NodeCall, name: str) -> bool:
    topic = call.cluster.topics.get(name)
    is_internal = topic is not None and topic.is_internal
    return not is_internal and call.may_write_topic(name)


async def _added_names(topics: Any) -> list[TopicPartition]:
    return await mapped(TopicPartition._make, [(topic.name, index) for topic in topics for index in topic.partitions])


def _count(topics: Any) -> int:
    return sum([len(topic.partitions) for topic in topics])


def _row(call: NodeCall, index: int, error: ErrorCode) -> Any:
    return call.new.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)


def _topic_row(call: NodeCall, rows: Iterator[Any], topic: Any) -> Any:
    """Return the row of a topic with the next rows of partitions."""
    return call.new.AddPartitionsToTxnTopicResult(
        name=topic.name, results_by_partition=tuple(islice(rows, len(topic.partitions)))
    )


async def _topic_results(call: NodeCall, topics: Any, errors: ErrorCode | _Errors) -> tuple[Any, ...]:
    """Return rows as in `topics` if all partitions have one error, else one row for each partition with an error."""
    if isinstance(errors, ErrorCode):
        indexes = [index for topic in topics for index in topic.partitions]
        rows = iter(await mapped(lambda index: _row(call, index, errors), indexes))
        return tuple(await mapped(partial(_topic_row, call, rows), topics))
    rows_of_topics: dict[str, list[Any]] = {}

    def add(item: tuple[TopicPartition, ErrorCode]) -> None:
        name, error = item
        rows_of_topics.setdefault(name.topic, []).append(_row(call, name.partition, error))

    await mapped(add, errors.items())
    new = call.new.AddPartitionsToTxnTopicResult
    made = await mapped(lambda item: new(name=item[0], results_by_partition=tuple(item[1])), rows_of_topics.items())
    return tuple(made)


def _refused(call: NodeCall, topics: Any, error: ErrorCode) -> tuple[Any, ...]:
    rows = (_row(call, index, error) for topic in topics for index in topic.partitions)
    return tuple(_topic_row(call, rows, topic) for topic in topics)


def _single(call: NodeCall, topics: tuple[Any, ...]) -> Any:
    return call.new.response(results_by_topic_v3_and_below=topics)


def _many(call: NodeCall, results: list[_Transaction], error: ErrorCode) -> Any:
    return call.new.response(
        error_code=error,
        results_by_transaction=tuple(
            call.new.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=topics,
            )
            for transaction, topics in results
        ),
    )


def refuse_add_partitions_to_txn(call: NodeCall, error: ErrorCode) -> Any:
    if call.version >= _MANY_TRANSACTIONS_VERSION:
        return _many(call, [], error)
    return _single(call, _refused(call, call.request.v3_and_below_topics, error))


def refuse_add_partitions_to_txn_partitions(call: NodeCall, error: ErrorCode) -> Any:
    if call.version < _MANY_TRANSACTIONS_VERSION:
        return _single(call, _refused(call, call.request.v3_and_below_topics, error))
    refused = [(each, _refused(call, each.topics, error)) for each in call.request.transactions]
    return _many(call, refused, NO_ERROR)


async def handle_add_offsets_to_txn(call: NodeCall) -> Any:
    """Serve AddOffsetsToTxn (key 25), versions 0-4.

    Makes the group's partition of `__consumer_offsets` part of a transaction: an AddPartitionsToTxn for that partition.

    * Access: WRITE on the transactional id (53), READ on the group (30).
    * v2 may return 90 (below, it is sent as 47); v3 flexible; v4 may return 120. TV2 clients do not use it.
    """
    request = call.request
    call.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    call.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    error = await call.node.transactions.add_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [TopicPartition(OFFSETS_TOPIC, call.cluster.group_partition(request.group_id))],
        transaction_version=0,
    )
    return refuse_add_offsets_to_txn(call, call.fenced_since(2, error))


def refuse_add_offsets_to_txn(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error)


_Results = dict[int, dict[str, dict[int, ErrorCode]]]
"""Errors by producer id, topic and partition."""


async def handle_write_txn_markers(call: NodeCall) -> Any:
    """Serve WriteTxnMarkers (key 27), versions 1-2.

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
    if not call.is_allowed(AclOperation.ALTER, ResourceType.CLUSTER, is_logged=False):
        call.require(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
    results: _Results = {}
    pace = Pace()
    for marker in call.request.markers:
        await pace.keep()
        names = _marker_names(marker)
        if -1 in (marker.producer_id, marker.producer_epoch) and any(_is_led(call, name) for name in names):
            return await call.refused(ErrorCode.unknown_server_error)
        for name in names:
            await pace.keep()
            error = await _write(call, marker, name)
            results.setdefault(marker.producer_id, {}).setdefault(name.topic, {})[name.partition] = error
    return await call.made(_response, call, results)


def _marker_names(marker: Any) -> Iterable[TopicPartition]:
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


def refuse_write_txn_markers(call: NodeCall, error: ErrorCode) -> Any:
    results: _Results = {}
    for marker in call.request.markers:
        topics: dict[str, dict[int, ErrorCode]] = {}
        for topic in marker.topics:
            topics.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes, error))
        results[marker.producer_id] = topics
    return _response(call, results)
