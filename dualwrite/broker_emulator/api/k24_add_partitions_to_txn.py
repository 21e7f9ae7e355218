"""AddPartitionsToTxn (key 24), versions 0-5.

Makes partitions part of a transaction.

* v0-3: one transaction, from clients, which need WRITE on the transactional id (53). Topics that are internal, or that
  the client may not WRITE, are 29, unknown ones 3; then no partition is added, and the others get 55. v2 may return 90
  (below, it is sent as 47); v3 flexible.
* v4-5: several transactions, from brokers (KIP-890), which need CLUSTER_ACTION (31); each adds partitions, or with
  VerifyOnly only verifies them. v5 may return 120. All are processed concurrently and answered in one response.
* v0-3 is recorded as a TV0 transaction, v4+ as TV2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.error_codes import NO_ERROR, producer_fenced_below
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped

_MANY_TRANSACTIONS_VERSION = 4

_Errors = Mapping[TopicPartition, ErrorCode]


async def handle(call: NodeCall) -> Any:
    if call.version >= _MANY_TRANSACTIONS_VERSION:
        if not call.is_allowed(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
            return refuse(call, ErrorCode.cluster_authorization_failed)
        transactions = call.request.transactions
        if len(transactions) == 1:
            results = [await _transaction(call, transactions[0])]
        else:  # one that waits for the replication of its record must not delay the others
            results = await asyncio.gather(*(_transaction(call, transaction) for transaction in transactions))
        return _many(call, list(zip(transactions, results, strict=True)), NO_ERROR)
    request = call.request
    if not call.may_write_id(request.v3_and_below_transactional_id):
        return refuse(call, ErrorCode.transactional_id_authorization_failed)
    errors = await _add(
        call,
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        _names(request.v3_and_below_topics),
        transaction_version=0,
    )
    if isinstance(errors, ErrorCode):
        errors = producer_fenced_below(2, call.version, errors)
    return _single(call, errors)


async def _transaction(call: NodeCall, transaction: Any) -> ErrorCode | _Errors:
    identity = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
    names = _names(transaction.topics)
    if transaction.verify_only:
        return call.node.transactions.verify_partitions(*identity, names)
    return await _add(call, *identity, names, transaction_version=2)


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
    checked = await mapped(lambda name: _check(call, name), names)
    if any(error is not NO_ERROR for error in checked):
        not_attempted = ErrorCode.operation_not_attempted
        return {name: not_attempted if error is NO_ERROR else error for name, error in zip(names, checked, strict=True)}
    if not names:
        return NO_ERROR
    return await call.node.transactions.add_partitions(
        transactional_id, producer_id, producer_epoch, names, transaction_version=transaction_version
    )


def _check(call: NodeCall, name: TopicPartition) -> ErrorCode:
    """Return why the partition cannot be part of a transaction, or NONE. Only brokers may add internal ones."""
    if call.version < _MANY_TRANSACTIONS_VERSION and not _may_write(call, name.topic):
        return ErrorCode.topic_authorization_failed
    partition = call.cluster.partition(*name)
    return ErrorCode.unknown_topic_or_partition if partition is None else NO_ERROR


def _may_write(call: NodeCall, name: str) -> bool:
    topic = call.cluster.topics.get(name)
    is_internal = topic is not None and topic.is_internal
    return not is_internal and call.may_write_topic(name)


def _names(topics: Any) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _topic_results(call: NodeCall, topics: Any, errors: ErrorCode | _Errors) -> tuple[Any, ...]:
    new = call.new
    return tuple(
        new.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                new.AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=errors
                    if isinstance(errors, ErrorCode)
                    else errors[TopicPartition(topic.name, index)],
                )
                for index in topic.partitions
            ),
        )
        for topic in topics
    )


def _single(call: NodeCall, errors: ErrorCode | _Errors) -> Any:
    topics = _topic_results(call, call.request.v3_and_below_topics, errors)
    return call.new.response(throttle_time=NO_THROTTLE, results_by_topic_v3_and_below=topics)


def _many(call: NodeCall, results: list[tuple[Any, ErrorCode | _Errors]], error: ErrorCode) -> Any:
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=error,
        results_by_transaction=tuple(
            call.new.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=_topic_results(call, transaction.topics, errors),
            )
            for transaction, errors in results
        ),
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    if call.version >= _MANY_TRANSACTIONS_VERSION:
        return _many(call, [], error)
    return _single(call, error)


def refuse_partitions(call: NodeCall, error: ErrorCode) -> Any:
    if call.version < _MANY_TRANSACTIONS_VERSION:
        return _single(call, error)
    return _many(call, [(transaction, error) for transaction in call.request.transactions], NO_ERROR)
