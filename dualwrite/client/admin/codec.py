"""Encode requests about transactions and decode their responses, with kafka-python's generated codec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from dualwrite.client import messages as m
from dualwrite.client.admin.results import (
    ActiveProducer,
    TransactionDescription,
    TransactionListing,
    TwoPhaseCommit,
)
from dualwrite.client.kafka_python import (
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from dualwrite.client.records.record import TopicPartition
from dualwrite.client.wire import codec, compiled
from dualwrite.client.wire.versions import SPOKEN_VERSIONS, versions_in_transaction, versions_wanted
from dualwrite.errors import Api
from dualwrite.prepared_state import PreparedTxnState

K = TypeVar("K")
T = TypeVar("T")

DURATION_FILTER_VERSION: Final = 1
"""The first ListTransactions with a filter by duration (KIP-994)."""

PATTERN_VERSION: Final = 2
"""The first ListTransactions with a pattern of transactional ids (KIP-1152)."""


class Call(NamedTuple, Generic[T]):
    """One request, with functions to encode it and to decode its response in any version of the range."""

    api: Api
    versions: tuple[int, int]
    encode: Callable[[int], bytes]
    decode: Callable[[memoryview, int], T]


class Reply(NamedTuple, Generic[T]):
    """A response or a part of one: an error code, or 0 and a value."""

    error_code: int
    value: T | None = None


class Listed(NamedTuple):
    """The response to ListTransactions."""

    transactions: tuple[TransactionListing, ...]
    unknown_states: tuple[str, ...]


def find_coordinators(transactional_ids: Sequence[str]) -> Call[dict[str, Reply[m.Broker]]]:
    """Return the request for the coordinators of transactional ids, for which brokers before version 4 take one."""
    if len(transactional_ids) == 1:
        return _find_coordinator(transactional_ids[0])

    def encode(version: int) -> bytes:
        key_type, keys = int(m.CoordinatorType.TRANSACTION), list(transactional_ids)
        return compiled.encode(
            FindCoordinatorRequest(version=version, key_type=key_type, coordinator_keys=keys), version
        )

    return Call(Api.FIND_COORDINATOR, (4, 4), encode, _coordinators)


def _find_coordinator(transactional_id: str) -> Call[dict[str, Reply[m.Broker]]]:
    request = m.FindCoordinator(m.CoordinatorType.TRANSACTION, transactional_id)

    def decode(body: memoryview, version: int) -> dict[str, Reply[m.Broker]]:
        found = codec.decode(request, body, version)
        assert isinstance(found, m.FindCoordinatorResponse)
        return {transactional_id: Reply(found.error_code, m.Broker(found.node_id, found.host, found.port))}

    versions = SPOKEN_VERSIONS[Api.FIND_COORDINATOR]
    return Call(Api.FIND_COORDINATOR, versions, lambda version: codec.encode(request, version), decode)


def _coordinators(body: memoryview, version: int) -> dict[str, Reply[m.Broker]]:
    return {
        row.key: Reply(row.error_code, m.Broker(row.node_id, row.host, row.port))
        for row in compiled.decode(FindCoordinatorResponse, body, version).coordinators
    }


def end_by_pair(transactional_id: str, pair: PreparedTxnState, transaction_version: int, *, commit: bool) -> Call[int]:
    """Return the EndTxn that commits or aborts the transaction of `pair`; its response is an error code."""
    versions = versions_in_transaction(Api.END_TXN, transaction_version)
    request = m.EndTxn(transactional_id, pair.producer_id, pair.producer_epoch, commit, transaction_version)

    def decode(body: memoryview, version: int) -> int:
        response = codec.decode(request, body, version)
        assert isinstance(response, m.EndTxnResponse)
        return response.error_code

    return Call(Api.END_TXN, versions, lambda version: codec.encode(request, version), decode)


def list_transactions(
    broker_id: int,
    *,
    states: Sequence[str],
    producer_ids: Sequence[int],
    running_longer_than_ms: int | None,
    pattern: str | None,
) -> Call[Reply[Listed]]:
    """Return the request for the transactional ids of one broker, in a version that has all given filters."""
    least = max(0 if running_longer_than_ms is None else DURATION_FILTER_VERSION, PATTERN_VERSION if pattern else 0)

    def encode(version: int) -> bytes:
        filters: dict[str, Any] = {"state_filters": list(states), "producer_id_filters": list(producer_ids)}
        if running_longer_than_ms is not None:
            filters["duration_filter"] = running_longer_than_ms
        if pattern:
            filters["transactional_id_pattern"] = pattern
        return compiled.encode(ListTransactionsRequest(version=version, **filters), version)

    def decode(body: memoryview, version: int) -> Reply[Listed]:
        response = compiled.decode(ListTransactionsResponse, body, version)
        rows = tuple(
            TransactionListing(row.transactional_id, row.producer_id, row.transaction_state, broker_id)
            for row in response.transaction_states
        )
        return Reply(response.error_code, Listed(rows, tuple(response.unknown_state_filters)))

    return Call(Api.LIST_TRANSACTIONS, (least, PATTERN_VERSION), encode, decode)


def describe_transactions(
    coordinator_id: int, transactional_ids: Sequence[str]
) -> Call[dict[str, Reply[TransactionDescription]]]:
    """Return the request for the descriptions of transactional ids at that coordinator."""

    def encode(version: int) -> bytes:
        return compiled.encode(
            DescribeTransactionsRequest(version=version, transactional_ids=list(transactional_ids)), version
        )

    def decode(body: memoryview, version: int) -> dict[str, Reply[TransactionDescription]]:
        rows = compiled.decode(DescribeTransactionsResponse, body, version).transaction_states
        return {row.transactional_id: Reply(row.error_code, _description(row, coordinator_id)) for row in rows}

    return Call(Api.DESCRIBE_TRANSACTIONS, (0, 0), encode, decode)


def _description(row: Any, coordinator_id: int) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=row.transactional_id,
        coordinator_id=coordinator_id,
        state=row.transaction_state,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        transaction_timeout_ms=row.transaction_timeout_ms,
        transaction_start_time_ms=_known(row.transaction_start_time_ms),
        topic_partitions=frozenset(
            TopicPartition(topic.topic, partition) for topic in row.topics for partition in topic.partitions
        ),
    )


def describe_producers(
    partitions: Iterable[TopicPartition],
) -> Call[dict[TopicPartition, Reply[tuple[ActiveProducer, ...]]]]:
    """Return the request for the producers that those partitions remember."""
    request = m.DescribeProducers(tuple(partitions))
    return Call(Api.DESCRIBE_PRODUCERS, (0, 0), lambda version: codec.encode(request, version), _producers)


def _producers(body: memoryview, version: int) -> dict[TopicPartition, Reply[tuple[ActiveProducer, ...]]]:
    return {
        TopicPartition(topic.name, row.partition_index): Reply(
            row.error_code, tuple(map(_producer, row.active_producers))
        )
        for topic in compiled.decode(DescribeProducersResponse, body, version).topics
        for row in topic.partitions
    }


def _producer(row: Any) -> ActiveProducer:
    return ActiveProducer(
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        last_sequence=row.last_sequence,
        last_timestamp_ms=row.last_timestamp,
        coordinator_epoch=_known(row.coordinator_epoch),
        current_transaction_start_offset=_known(row.current_txn_start_offset),
    )


def write_marker(
    partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, commits: bool
) -> Call[dict[TopicPartition, Reply[bool]]]:
    """Return the request for a marker that ends the open transaction of one producer on one partition.

    Version 1 at most: version 2 distinguishes markers of transaction.version 2 from older ones (KIP-1228), and an
    operator's marker, which has the epoch that the partition shows, follows the older rule.
    """

    def encode(version: int) -> bytes:
        marker_class = WriteTxnMarkersRequest.WritableTxnMarker
        topic = marker_class.WritableTxnMarkerTopic(
            version=version, name=partition.topic, partition_indexes=[partition.partition]
        )
        marker = marker_class(
            version=version,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=commits,
            topics=[topic],
            coordinator_epoch=coordinator_epoch,
        )
        return compiled.encode(WriteTxnMarkersRequest(version=version, markers=[marker]), version)

    return Call(Api.WRITE_TXN_MARKERS, (0, 1), encode, _marker_written)


def _marker_written(body: memoryview, version: int) -> dict[TopicPartition, Reply[bool]]:
    return {
        TopicPartition(topic.name, row.partition_index): Reply(row.error_code, row.error_code == 0)
        for marker in compiled.decode(WriteTxnMarkersResponse, body, version).markers
        for topic in marker.topics
        for row in topic.partitions
    }


def init_producer_id(
    transactional_id: str, transaction_timeout_ms: int, pair: tuple[int, int] | None
) -> Call[dict[str, Reply[m.InitProducerIdResponse]]]:
    """Return the InitProducerId of a plain producer, which ends an open transaction, even a prepared one.

    With a pair (producer id and epoch), it does nothing to an id that has moved on to another pair and has no open
    transaction.
    """
    request = m.InitProducerId(transactional_id, transaction_timeout_ms, enable_2pc=False, keep_prepared_txn=False)
    if pair is not None:
        request = request._replace(producer_id=pair[0], producer_epoch=pair[1])

    return _init_producer_id(request, transactional_id, lambda response: Reply(response.error_code, response))


def _init_producer_id(
    request: m.InitProducerId, about: K, reply: Callable[[m.InitProducerIdResponse], Reply[T]]
) -> Call[dict[K, Reply[T]]]:
    def decode(body: memoryview, version: int) -> dict[K, Reply[T]]:
        response = codec.decode(request, body, version)
        assert isinstance(response, m.InitProducerIdResponse)
        return {about: reply(response)}

    return Call(
        Api.INIT_PRODUCER_ID,
        versions_wanted(request),
        lambda version: codec.encode(request, version),
        decode,
    )


def _told_by(error_code: int, answers: Mapping[int, T]) -> Reply[T]:
    """Return the answer that a refusal stands for, or the error itself if it stands for none."""
    return Reply(0, answers[error_code]) if error_code in answers else Reply(error_code)


_TWO_PHASE_COMMIT: Final = {
    42: TwoPhaseCommit.KEEPS_PREPARED,
    35: TwoPhaseCommit.STORED_PAIR,
    53: TwoPhaseCommit.REFUSED,
}


def two_phase_commit(transactional_id: str, broker_id: int) -> Call[dict[int, Reply[TwoPhaseCommit]]]:
    """Return an InitProducerId that every broker refuses, with an error that shows its support of two-phase commit.

    A broker first checks whether two-phase commit is enabled (error 53), then whether KeepPreparedTxn is supported
    (35), and then that no producer id and epoch came with it, which is not allowed (42). It does so before it looks up
    the id.
    """
    request = m.InitProducerId(transactional_id, 1, enable_2pc=True, keep_prepared_txn=True)
    request = request._replace(producer_id=0, producer_epoch=0)

    return _init_producer_id(request, broker_id, lambda response: _told_by(response.error_code, _TWO_PHASE_COMMIT))


_RIGHT_TO_WRITE: Final = {42: True, 53: False}


def right_to_write(transactional_id: str) -> Call[dict[str, Reply[bool]]]:
    """Return an InitProducerId that every broker refuses, with an error that shows whether WRITE on the id is allowed.

    A broker first checks that right (error 53), and then that a producer id comes with an epoch, as it does not here
    (42). It does so before it looks up the id.
    """
    request = m.InitProducerId(transactional_id, 1, enable_2pc=False, keep_prepared_txn=False, producer_id=0)

    return _init_producer_id(request, transactional_id, lambda response: _told_by(response.error_code, _RIGHT_TO_WRITE))


def _known(value: int) -> int | None:
    """Return None for -1, which stands for a missing value in Kafka."""
    return None if value < 0 else value
