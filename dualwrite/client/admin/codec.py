"""Encode admin requests and decode their responses, with kafka-python's generated codec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from dualwrite.client import messages as m
from dualwrite.client.admin.results import (
    ActiveProducer,
    BrokerDescription,
    BrokerFeatures,
    ClusterDescription,
    TransactionDescription,
    TransactionListing,
    TwoPhaseCommit,
)
from dualwrite.client.kafka_python import (
    ApiVersionsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    MetadataRequest,
    MetadataResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from dualwrite.client.records.record import TopicPartition
from dualwrite.client.wire import codec
from dualwrite.errors import Api
from dualwrite.prepared_state import PreparedTxnState

K = TypeVar("K")
T = TypeVar("T")

DURATION_FILTER_VERSION: Final = 1
"""The first ListTransactions with a filter by duration (KIP-994)."""

PATTERN_VERSION: Final = 2
"""The first ListTransactions with a pattern of transactional ids (KIP-1152)."""

CLEANUP_POLICY: Final = "cleanup.policy"
_MOST_AGE_MS: Final = "message.timestamp.before.max.ms"
_CREATES_TOPICS: Final = "auto.create.topics.enable"
_NO_LIMIT: Final = 2**63 - 1

_FIRST_WITH_RIGHTS: Final = 8
"""The first Metadata with the operations that a client is allowed (KIP-430)."""

_READ: Final = 3
_WRITE: Final = 4
"""Two of the operations that a client may be allowed."""

_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4


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


class TopicPartitions(NamedTuple):
    """The metadata of a topic; `leaders` are (node id, leader epoch) by partition, -1 if there is none.

    `is_readable`, `is_writable`: whether this client is allowed READ, WRITE; None if that was not requested or the
    topic is not known.
    """

    error_code: int
    leaders: Mapping[int, tuple[int, int]]
    replicas: Mapping[int, tuple[int, ...]]
    topic_id: str | None
    is_readable: bool | None = None
    is_writable: bool | None = None


class ClusterMetadata(NamedTuple):
    """The response to Metadata."""

    cluster: ClusterDescription
    topics: Mapping[str, TopicPartitions]


class Listed(NamedTuple):
    """The response to ListTransactions."""

    transactions: tuple[TransactionListing, ...]
    unknown_states: tuple[str, ...]


def metadata(topics: Sequence[str] | None, *, with_rights: bool = False) -> Call[ClusterMetadata]:
    """Return the request for the living brokers and these topics (None: all). It creates no topic.

    `with_rights`: also whether this client is allowed to read them (KIP-430).
    """

    def encode(version: int) -> bytes:
        topic_class = MetadataRequest.MetadataRequestTopic
        named = None if topics is None else [topic_class(version=version, name=topic) for topic in topics]
        request = MetadataRequest(version=version, topics=named, allow_auto_topic_creation=False)
        if with_rights:
            request.include_topic_authorized_operations = True
        return _bytes(request, version)

    return Call(Api.METADATA, (_FIRST_WITH_RIGHTS if with_rights else 4, 12), encode, _metadata)


def _metadata(body: memoryview, version: int) -> ClusterMetadata:
    response = _decoded(MetadataResponse, body, version)
    brokers = tuple(
        BrokerDescription(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers
    )
    controller_id = None if response.controller_id == -1 else response.controller_id
    return ClusterMetadata(
        ClusterDescription(response.cluster_id, controller_id, tuple(sorted(brokers, key=lambda row: row.broker_id))),
        {
            topic.name: TopicPartitions(
                topic.error_code,
                {row.partition_index: (row.leader_id, row.leader_epoch) for row in topic.partitions},
                {row.partition_index: tuple(row.replica_nodes) for row in topic.partitions},
                _topic_id(topic),
                _is_allowed(topic, _READ),
                _is_allowed(topic, _WRITE),
            )
            for topic in response.topics
        },
    )


def _topic_id(topic: Any) -> str | None:
    """Return the topic's id; None from brokers without topic ids (Metadata before version 10: Kafka 2.7)."""
    found = getattr(topic, "topic_id", None)
    return str(found) if isinstance(found, UUID) and found.int else None


def _is_allowed(topic: Any, operation: int) -> bool | None:
    operations = getattr(topic, "authorized_operations", None)
    return None if operations is None else operation in operations


class TopicSettings(NamedTuple):
    """The settings of a topic; `most_age_ms` is `message.timestamp.before.max.ms`, None if there is no limit."""

    cleanup_policy: str | None
    most_age_ms: int | None


def describe_topic_settings(topics: Sequence[str]) -> Call[dict[str, Reply[TopicSettings]]]:
    """Return the request for settings of topics, which any broker answers."""

    def encode(version: int) -> bytes:
        resource_class = DescribeConfigsRequest.DescribeConfigsResource
        resources = [
            resource_class(
                version=version,
                resource_type=_TOPIC_RESOURCE,
                resource_name=name,
                configuration_keys=[CLEANUP_POLICY, _MOST_AGE_MS],
            )
            for name in topics
        ]
        return _bytes(DescribeConfigsRequest(version=version, resources=resources), version)

    def decode(body: memoryview, version: int) -> dict[str, Reply[TopicSettings]]:
        rows = _decoded(DescribeConfigsResponse, body, version).results
        return {row.resource_name: Reply(row.error_code, _topic_settings(row)) for row in rows}

    return Call(Api.DESCRIBE_CONFIGS, (1, 4), encode, decode)


def _topic_settings(row: Any) -> TopicSettings | None:
    if row.error_code:
        return None
    values = {config.name: config.value for config in row.configs or ()}
    most_age_ms = int(values.get(_MOST_AGE_MS) or _NO_LIMIT)
    return TopicSettings(values.get(CLEANUP_POLICY), None if most_age_ms == _NO_LIMIT else most_age_ms)


def creates_topics(broker_id: int) -> Call[dict[int, Reply[bool]]]:
    """Return the request for the setting of this broker by which a topic is created when a producer first names it."""

    def encode(version: int) -> bytes:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            version=version,
            resource_type=_BROKER_RESOURCE,
            resource_name=str(broker_id),
            configuration_keys=[_CREATES_TOPICS],
        )
        return _bytes(DescribeConfigsRequest(version=version, resources=[resource]), version)

    def decode(body: memoryview, version: int) -> dict[int, Reply[bool]]:
        (row,) = _decoded(DescribeConfigsResponse, body, version).results
        return {broker_id: Reply(row.error_code, any(config.value == "true" for config in row.configs or ()))}

    return Call(Api.DESCRIBE_CONFIGS, (1, 4), encode, decode)


def find_coordinators(transactional_ids: Sequence[str]) -> Call[dict[str, Reply[m.Broker]]]:
    """Return the request for the coordinators of transactional ids, for which brokers before version 4 take one."""
    if len(transactional_ids) == 1:
        return _find_coordinator(transactional_ids[0])

    def encode(version: int) -> bytes:
        key_type, keys = int(m.CoordinatorType.TRANSACTION), list(transactional_ids)
        return _bytes(FindCoordinatorRequest(version=version, key_type=key_type, coordinator_keys=keys), version)

    return Call(Api.FIND_COORDINATOR, (4, 4), encode, _coordinators)


def _find_coordinator(transactional_id: str) -> Call[dict[str, Reply[m.Broker]]]:
    request = m.FindCoordinator(m.CoordinatorType.TRANSACTION, transactional_id)

    def decode(body: memoryview, version: int) -> dict[str, Reply[m.Broker]]:
        found = codec.decode(request, body, version)
        assert isinstance(found, m.FindCoordinatorResponse)
        return {transactional_id: Reply(found.error_code, m.Broker(found.node_id, found.host, found.port))}

    versions = codec.SPOKEN_VERSIONS[Api.FIND_COORDINATOR]
    return Call(Api.FIND_COORDINATOR, versions, lambda version: codec.encode(request, version), decode)


def _coordinators(body: memoryview, version: int) -> dict[str, Reply[m.Broker]]:
    return {
        row.key: Reply(row.error_code, m.Broker(row.node_id, row.host, row.port))
        for row in _decoded(FindCoordinatorResponse, body, version).coordinators
    }


def end_by_pair(transactional_id: str, pair: PreparedTxnState, transaction_version: int, *, commit: bool) -> Call[int]:
    """Return the EndTxn that commits or aborts the transaction of `pair`; its response is an error code."""
    versions = codec.versions_in_transaction(Api.END_TXN, transaction_version)
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
        return _bytes(ListTransactionsRequest(version=version, **filters), version)

    def decode(body: memoryview, version: int) -> Reply[Listed]:
        response = _decoded(ListTransactionsResponse, body, version)
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
        return _bytes(DescribeTransactionsRequest(version=version, transactional_ids=list(transactional_ids)), version)

    def decode(body: memoryview, version: int) -> dict[str, Reply[TransactionDescription]]:
        rows = _decoded(DescribeTransactionsResponse, body, version).transaction_states
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
        for topic in _decoded(DescribeProducersResponse, body, version).topics
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
        return _bytes(WriteTxnMarkersRequest(version=version, markers=[marker]), version)

    return Call(Api.WRITE_TXN_MARKERS, (0, 1), encode, _marker_written)


def _marker_written(body: memoryview, version: int) -> dict[TopicPartition, Reply[bool]]:
    return {
        TopicPartition(topic.name, row.partition_index): Reply(row.error_code, row.error_code == 0)
        for marker in _decoded(WriteTxnMarkersResponse, body, version).markers
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
        codec.versions_wanted(request),
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


def api_versions(broker_id: int) -> Call[dict[int, Reply[BrokerFeatures]]]:
    """Return the request for the versions and features of that broker."""
    return Call(
        Api.API_VERSIONS,
        (0, 4),
        codec.encode_api_versions,
        lambda body, version: {broker_id: _features(broker_id, _decoded(ApiVersionsResponse, body, version))},
    )


def _features(broker_id: int, response: Any) -> Reply[BrokerFeatures]:
    finalized, epoch = response.finalized_features or (), response.finalized_features_epoch
    features = BrokerFeatures(
        broker_id=broker_id,
        api_versions={row.api_key: (row.min_version, row.max_version) for row in response.api_keys},
        supported_features={row.name: (row.min_version, row.max_version) for row in response.supported_features or ()},
        finalized_features={row.name: (row.min_version_level, row.max_version_level) for row in finalized},
        finalized_features_epoch=-1 if epoch is None else epoch,
    )
    return Reply(response.error_code, features)


def _known(value: int) -> int | None:
    """Return None for -1, which stands for a missing value in Kafka."""
    return None if value < 0 else value


def _bytes(message: Any, version: int) -> bytes:
    body: bytes = message.encode(version=version)
    return body


def _decoded(message_class: Any, body: memoryview, version: int) -> Any:
    return message_class.decode(body, version=version)
