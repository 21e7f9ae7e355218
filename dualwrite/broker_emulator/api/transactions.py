"""Transactions by transactional id: producer ids, EndTxn, and their state for operators."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.topics import named_partitions, topics_response
from dualwrite.broker_emulator.error_codes import NO_ERROR, RefusedError
from dualwrite.broker_emulator.log.results import ProducerDescription
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped, mapped_rows, selected
from dualwrite.broker_emulator.topics.topics import why_not_a_topic_name
from dualwrite.broker_emulator.transactions.inspection import (
    ListTransactionsResult,
    TransactionDescription,
    TransactionListing,
    matching,
)

_MILLISECOND = timedelta(milliseconds=1)


async def handle_init_producer_id(call: NodeCall) -> Any:
    """Serve InitProducerId (key 22), versions 0-6.

    Gives a producer its id and epoch, and fences the previous owner of the transactional id.

    * v2 flexible; v3 adds the expected ProducerId and ProducerEpoch (KIP-360); v4 may return 90; v5 may return 120
      (KIP-890); v6 adds Enable2Pc and KeepPreparedTxn, and returns the id and epoch of the ongoing transaction
      (KIP-939).
    * Below v4, 90 PRODUCER_FENCED is sent as 47 INVALID_PRODUCER_EPOCH.
    * Access: WRITE on the transactional id, and TWO_PHASE_COMMIT on it for Enable2Pc (53). Without a transactional id,
      IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (31, KIP-679).
    * With every error, all four ids and epochs are -1.
    * v6 is unstable in all profiles but kip-939 (`unstable.api.versions.enable` shows it), and not in kafka-3.9.
    """
    request = call.request
    _check_init_access(call)
    result = await call.node.transactions.init_producer_id(
        request.transactional_id,
        request.transaction_timeout // _MILLISECOND,
        producer_id=getattr(request, "producer_id", -1),
        producer_epoch=getattr(request, "producer_epoch", -1),
        enable_2pc=getattr(request, "enable2_pc", False),
        keep_prepared=getattr(request, "keep_prepared_txn", False),
    )
    if result.error is not NO_ERROR:
        return refuse_init_producer_id(call, call.fenced_since(4, result.error))
    return call.new.response(
        error_code=NO_ERROR,
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
        ongoing_txn_producer_id=result.ongoing_producer_id,
        ongoing_txn_producer_epoch=result.ongoing_producer_epoch,
    )


def _check_init_access(call: NodeCall) -> None:
    """Raise RefusedError for a client that lacks a permission."""
    name = call.request.transactional_id
    if name is None:
        if not (
            call.is_allowed(AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, is_logged=False)
            or call.is_allowed_on_any(AclOperation.WRITE, ResourceType.TOPIC)
        ):
            raise RefusedError(ErrorCode.cluster_authorization_failed)
        return
    call.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
    if getattr(call.request, "enable2_pc", False):
        call.require(AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, name)


def refuse_init_producer_id(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, producer_id=-1, producer_epoch=-1)


async def handle_end_txn(call: NodeCall) -> Any:
    """Serve EndTxn (key 26), versions 0-5.

    Commits or aborts the ongoing transaction. The response is sent once the decision is in the log; the markers follow.

    * v2 may return 90 (below, it is sent as 47); v3 flexible; v4 may return 120; v5 is TV2 (KIP-890): every transaction
      bumps the epoch, and the response has the producer id and epoch of the next one, or (-1, -1) with an error.
    * Access: WRITE on the transactional id (53).
    * v5 is hidden by the profile kafka-3.9.
    """
    request = call.request
    call.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    result = await call.node.transactions.end_txn(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        commit=request.committed,
        transaction_version=2 if call.version >= 5 else 0,
    )
    if result.error is not NO_ERROR:
        return refuse_end_txn(call, call.fenced_since(2, result.error))
    return call.new.response(
        error_code=NO_ERROR,
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
    )


def refuse_end_txn(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def handle_describe_transactions(call: NodeCall) -> Any:
    """Serve DescribeTransactions (key 65), version 0.

    The coordinator's state of transactional ids (KIP-664): state, timeout, start, producer, partitions.

    * Per id: empty 42, of another node 16, while loading 14, unknown 105. While a transaction is being completed, only
      partitions without their marker are listed.
    * Access: DESCRIBE on the transactional id (53); topics that the client may not DESCRIBE are omitted.
    * The timeout of a two-phase-commit transaction is 2147483647. A start of -1 means no transaction.
    """
    ids = call.request.transactional_ids
    states = await mapped(lambda name: _transaction_state(call, _description(call, name)), ids)
    return call.new.response(transaction_states=tuple(states))


def _description(call: NodeCall, transactional_id: str) -> TransactionDescription:
    if call.is_allowed(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return call.node.transactions.describe(transactional_id)
    return TransactionDescription(ErrorCode.transactional_id_authorization_failed, transactional_id)


def _transaction_state(call: NodeCall, description: TransactionDescription) -> Any:
    by_topic: dict[str, list[int]] = {}
    for name in description.topic_partitions:
        by_topic.setdefault(name.topic, []).append(name.partition)
    shown = [topic for topic in by_topic if call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)]
    return call.new.TransactionState(
        error_code=description.error,
        transactional_id=description.transactional_id,
        transaction_state=description.state,
        transaction_timeout=timedelta(milliseconds=description.timeout_ms),
        # the codec has no null here: -1 is the millisecond before the epoch
        transaction_start_time=_EPOCH + timedelta(milliseconds=description.start_time_ms),
        producer_id=description.producer_id,
        producer_epoch=description.producer_epoch,
        topics=tuple(call.new.TopicData(topic=topic, partitions=tuple(by_topic[topic])) for topic in shown),
    )


def refuse_describe_transactions(call: NodeCall, error: ErrorCode) -> Any:
    ids = call.request.transactional_ids
    states = (_transaction_state(call, TransactionDescription(error, name)) for name in ids)
    return call.new.response(transaction_states=tuple(states))


async def handle_list_transactions(call: NodeCall) -> Any:
    """Serve ListTransactions (key 66), versions 0-2.

    The transactional ids that this node coordinates (KIP-664); clients send it to every node.

    * v1 minimum duration (KIP-994), v2 pattern of the id (KIP-1152). Filters are ANDed; unknown states are returned in
      the response; if all states are unknown, no id matches. A pattern that does not compile is 128.
    * Access: transactional ids that the client may not DESCRIBE are omitted.
    * v2 is hidden by the profile kafka-3.9.
    """
    request = call.request
    listed = call.node.transactions.list(
        state_filters=request.state_filters,
        producer_id_filters=request.producer_id_filters,
        duration_filter_ms=getattr(request, "duration_filter", -1),
    )
    found = await matching(listed, getattr(request, "transactional_id_pattern", None))

    def is_shown(row: TransactionListing) -> bool:
        return call.is_allowed(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, row.transactional_id)

    shown = found._replace(transactions=tuple(await selected(is_shown, found.transactions)))
    return await call.made(_listed_response, call, shown)


def _listed_response(call: NodeCall, result: ListTransactionsResult) -> Any:
    return call.new.response(
        error_code=result.error,
        unknown_state_filters=result.unknown_state_filters,
        transaction_states=tuple(
            call.new.TransactionState(
                transactional_id=transactional_id, producer_id=producer_id, transaction_state=state
            )
            for transactional_id, producer_id, state in result.transactions
        ),
    )


def refuse_list_transactions(call: NodeCall, error: ErrorCode) -> Any:
    return _listed_response(call, ListTransactionsResult(error))


async def handle_describe_producers(call: NodeCall) -> Any:
    """Serve DescribeProducers (key 61), version 0.

    The producers known to a node with a replica of a partition, with or without an open transaction (KIP-664).

    * Access: READ on the topics (29).
    * Illegal topic name 17; unknown partition 3; no replica on this node 6. A follower responds like the leader.
    """
    rows = await mapped_rows(lambda pair: _producers_of(call, *pair), named_partitions(call))
    return await call.made(topics_response, call, "TopicResponse", rows)


def _producers_of(call: NodeCall, requested: Any, index: int) -> Any:
    name = requested.name
    problem = why_not_a_topic_name(name)
    if problem is not None:
        return _producers_partition(call, index, ErrorCode.invalid_topic_exception, message=problem)
    if not call.is_allowed(AclOperation.READ, ResourceType.TOPIC, name):
        return _producers_partition(call, index, ErrorCode.topic_authorization_failed)
    partition = call.cluster.partition(name, index)
    if partition is None:
        return _producers_partition(call, index, ErrorCode.unknown_topic_or_partition)
    if call.node.node_id not in partition.replicas:
        return _producers_partition(call, index, ErrorCode.not_leader_or_follower)
    return _producers_partition(call, index, ErrorCode.none, partition.log.producers())


def _producers_partition(
    call: NodeCall,
    index: int,
    error: ErrorCode,
    producers: Sequence[ProducerDescription] = (),
    message: str | None = None,
) -> Any:
    return call.new.PartitionResponse(
        partition_index=index,
        error_code=error,
        error_message=message,
        active_producers=tuple(call.new.ProducerState(**producer._asdict()) for producer in producers),
    )


def refuse_describe_producers(call: NodeCall, error: ErrorCode) -> Any:
    return topics_response(call, "TopicResponse", lambda topic, index: _producers_partition(call, index, error))
