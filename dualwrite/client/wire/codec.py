"""Encode requests and decode responses, with kafka-python's generated codec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from dualwrite.client import messages as m
from dualwrite.client.kafka_python import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from dualwrite.client.records.record import TopicPartition
from dualwrite.client.wire import compiled
from dualwrite.client.wire.malformed import MalformedResponseError
from dualwrite.client.wire.versions import TWO_PHASE_INIT_VERSION
from dualwrite.errors import Api

T = TypeVar("T")

_TRANSACTION_VERSION_FEATURE: Final = "transaction.version"

_FIRST_BATCHED_FIND_COORDINATOR: Final = 4
"""The first version with several keys in one request (KIP-699)."""

_MOST_PARTITIONS: Final = 1_000_000
"""Limit for the partitions of a topic: no cluster has as many, but a malformed response may name any number."""

_NO_PAIR: Final = (-1, -1)


def decode_produce(body: memoryview, version: int) -> list[m.PartitionProduced]:
    """Return one result per partition of the response. Raises `MalformedResponseError`."""
    return _checked(Api.PRODUCE, _produced, body, version)


def _checked(api: Api, decoder: Callable[[memoryview, int], T], body: memoryview, version: int) -> T:
    try:
        return decoder(body, version)
    except Exception as error:  # a codec may raise anything for bytes that are not Kafka's
        raise MalformedResponseError(api, version, len(body), error) from error


def _produced(body: memoryview, version: int) -> list[m.PartitionProduced]:
    return [
        m.PartitionProduced(
            topic.name,
            partition.index,
            partition.error_code,
            partition.base_offset,
            partition.log_append_time_ms,
            partition.error_message,
        )
        for topic in compiled.decode(ProduceResponse, body, version).responses
        for partition in topic.partition_responses
    ]


def encode(request: m.Request, version: int) -> bytes:
    """Return the body of any request except Produce and ApiVersions."""
    return compiled.encode(_ENCODERS[type(request)](request, version), version)


def decode(request: m.Request, body: memoryview, version: int) -> m.Response:
    """Decode the response to `request`. Raises `MalformedResponseError`."""
    return _checked(m.API_OF[type(request)], _DECODERS[type(request)], body, version)


def decode_api_versions(body: memoryview, version: int) -> m.BrokerFeatures:
    """Decode the broker's features. With error 35 the body is of version 0, whichever version was requested.

    Raises `MalformedResponseError`.
    """
    return _checked(Api.API_VERSIONS, _features, body, version)


def _features(body: memoryview, version: int) -> m.BrokerFeatures:
    if body[0] == 0 and body[1] == 35:
        return m.BrokerFeatures(35, {}, 0)
    response = compiled.decode(ApiVersionsResponse, body, version)
    versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    return m.BrokerFeatures(response.error_code, versions, _transaction_version(response.finalized_features or ()))


def encode_sasl_handshake(mechanism: str, version: int) -> bytes:
    """Return the body that names the mechanism of a login (KIP-43)."""
    return compiled.encode(SaslHandshakeRequest(version=version, mechanism=mechanism), version)


def decode_sasl_handshake(body: memoryview, version: int) -> m.SaslHandshakeResponse:
    """Decode whether the broker accepts the mechanism, and which it accepts. Raises `MalformedResponseError`."""
    return _checked(Api.SASL_HANDSHAKE, _mechanism_answered, body, version)


def _mechanism_answered(body: memoryview, version: int) -> m.SaslHandshakeResponse:
    response = compiled.decode(SaslHandshakeResponse, body, version)
    return m.SaslHandshakeResponse(response.error_code, tuple(response.mechanisms))


def encode_sasl_authenticate(auth_bytes: bytes, version: int) -> bytes:
    """Return the body with the mechanism's next message (KIP-152)."""
    return compiled.encode(SaslAuthenticateRequest(version=version, auth_bytes=auth_bytes), version)


def decode_sasl_authenticate(body: memoryview, version: int) -> m.SaslAuthenticateResponse:
    """Decode the broker's message to the mechanism. Raises `MalformedResponseError`."""
    return _checked(Api.SASL_AUTHENTICATE, _authenticated, body, version)


def _authenticated(body: memoryview, version: int) -> m.SaslAuthenticateResponse:
    response = compiled.decode(SaslAuthenticateResponse, body, version)
    return m.SaslAuthenticateResponse(
        response.error_code, response.error_message, bytes(response.auth_bytes), response.session_lifetime_ms
    )


def _transaction_version(features: Sequence[Any]) -> int:
    levels = (feature.max_version_level for feature in features if feature.name == _TRANSACTION_VERSION_FEATURE)
    return int(next(levels, 0))


def _api_versions(request: m.ApiVersions, version: int) -> Any:
    return ApiVersionsRequest(version=version, client_software_name="dualwrite", client_software_version="0.1.0")


def _describe_transaction(request: m.DescribeTransaction, version: int) -> Any:
    return DescribeTransactionsRequest(version=version, transactional_ids=[request.transactional_id])


def _describe_producers(request: m.DescribeProducers, version: int) -> Any:
    topic_class = DescribeProducersRequest.TopicRequest
    topics = [
        topic_class(version=version, name=name, partition_indexes=indexes)
        for name, indexes in _by_topic(request.partitions).items()
    ]
    return DescribeProducersRequest(version=version, topics=topics)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def _add_partitions(request: m.AddPartitionsToTxn, version: int) -> Any:
    topic_class = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        version=version,
        v3_and_below_transactional_id=request.transactional_id,
        v3_and_below_producer_id=request.producer_id,
        v3_and_below_producer_epoch=request.producer_epoch,
        v3_and_below_topics=[
            topic_class(version=version, name=name, partitions=partitions)
            for name, partitions in _by_topic(request.partitions).items()
        ],
    )


def _add_offsets(request: m.AddOffsetsToTxn, version: int) -> Any:
    return AddOffsetsToTxnRequest(
        version=version,
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        group_id=request.group_id,
    )


def _find_coordinator(request: m.FindCoordinator, version: int) -> Any:
    if version < _FIRST_BATCHED_FIND_COORDINATOR:
        return FindCoordinatorRequest(version=version, key_type=int(request.key_type), key=request.key)
    return FindCoordinatorRequest(version=version, key_type=int(request.key_type), coordinator_keys=[request.key])


def _init_producer_id(request: m.InitProducerId, version: int) -> Any:
    two_phase = {"enable2_pc": request.enable_2pc, "keep_prepared_txn": request.keep_prepared_txn}
    return InitProducerIdRequest(
        version=version,
        transactional_id=request.transactional_id,
        transaction_timeout_ms=request.transaction_timeout_ms,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        **(two_phase if version >= TWO_PHASE_INIT_VERSION else {}),
    )


def _end_txn(request: m.EndTxn, version: int) -> Any:
    return EndTxnRequest(
        version=version,
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        committed=request.committed,
    )


def _txn_offset_commit(request: m.TxnOffsetCommit, version: int) -> Any:
    topic_class = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition_class = topic_class.TxnOffsetCommitRequestPartition
    by_topic: dict[str, list[Any]] = {}
    for (topic, partition), offset in request.offsets.items():
        by_topic.setdefault(topic, []).append(
            partition_class(
                version=version,
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        version=version,
        transactional_id=request.transactional_id,
        group_id=request.group.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        generation_id=request.group.generation_id,
        member_id=request.group.member_id,
        group_instance_id=request.group.group_instance_id,
        topics=[topic_class(version=version, name=name, partitions=parts) for name, parts in by_topic.items()],
    )


def _metadata(request: m.Metadata, version: int) -> Any:
    topic_class = MetadataRequest.MetadataRequestTopic
    topics = [topic_class(version=version, name=name) for name in request.topics]
    return MetadataRequest(version=version, topics=topics, allow_auto_topic_creation=True)


_ENCODERS: Final[Mapping[type[m.Request], Callable[[Any, int], Any]]] = {
    m.FindCoordinator: _find_coordinator,
    m.InitProducerId: _init_producer_id,
    m.AddPartitionsToTxn: _add_partitions,
    m.AddOffsetsToTxn: _add_offsets,
    m.EndTxn: _end_txn,
    m.TxnOffsetCommit: _txn_offset_commit,
    m.DescribeTransaction: _describe_transaction,
    m.DescribeProducers: _describe_producers,
    m.ApiVersions: _api_versions,
    m.Metadata: _metadata,
}


def _found_coordinator(body: memoryview, version: int) -> m.FindCoordinatorResponse:
    response = compiled.decode(FindCoordinatorResponse, body, version)
    (found,) = (response,) if version < _FIRST_BATCHED_FIND_COORDINATOR else response.coordinators
    if found.error_code == 0:
        _check_address(found.host, found.port)
    return m.FindCoordinatorResponse(found.error_code, found.node_id, found.host, found.port)


def _check_address(host: str | None, port: int) -> None:
    """Raise ValueError for an invalid address; without a host, the system would connect to this machine."""
    if not host or not 0 < port < 1 << 16:
        raise ValueError(f"{host!r} with port {port} is no address of a broker")


def _initialised(body: memoryview, version: int) -> m.InitProducerIdResponse:
    response = compiled.decode(InitProducerIdResponse, body, version)
    if response.error_code == 0:
        _check_pair(response.producer_id, response.producer_epoch)
    if (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch) != _NO_PAIR:
        _check_pair(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
    return m.InitProducerIdResponse(
        response.error_code,
        response.producer_id,
        response.producer_epoch,
        response.ongoing_txn_producer_id,
        response.ongoing_txn_producer_epoch,
    )


def _check_pair(producer_id: int, producer_epoch: int) -> None:
    """Raise ValueError for an invalid pair."""
    if producer_id < 0 or producer_epoch < 0:
        raise ValueError(f"invalid producer id {producer_id} with epoch {producer_epoch}")


def _partitions_added(body: memoryview, version: int) -> m.AddPartitionsToTxnResponse:
    return m.AddPartitionsToTxnResponse(
        {
            TopicPartition(topic.name, partition.partition_index): partition.partition_error_code
            for topic in compiled.decode(AddPartitionsToTxnResponse, body, version).results_by_topic_v3_and_below
            for partition in topic.results_by_partition
        }
    )


def _offsets_added(body: memoryview, version: int) -> m.AddOffsetsToTxnResponse:
    return m.AddOffsetsToTxnResponse(compiled.decode(AddOffsetsToTxnResponse, body, version).error_code)


def _transaction_described(body: memoryview, version: int) -> m.DescribeTransactionResponse:
    (described,) = compiled.decode(DescribeTransactionsResponse, body, version).transaction_states
    return m.DescribeTransactionResponse(
        described.error_code,
        described.transaction_state,
        described.producer_id,
        described.producer_epoch,
        described.transaction_start_time_ms,
        described.transaction_timeout_ms,
    )


def _producers_described(body: memoryview, version: int) -> m.DescribeProducersResponse:
    return m.DescribeProducersResponse(
        {
            TopicPartition(topic.name, described.partition_index): m.PartitionProducers(
                described.error_code,
                {
                    producer.producer_id: m.OpenAt(producer.producer_epoch, producer.current_txn_start_offset)
                    for producer in described.active_producers
                    if producer.current_txn_start_offset >= 0
                },
            )
            for topic in compiled.decode(DescribeProducersResponse, body, version).topics
            for described in topic.partitions
        }
    )


def _ended(body: memoryview, version: int) -> m.EndTxnResponse:
    response = compiled.decode(EndTxnResponse, body, version)
    if (response.producer_id, response.producer_epoch) != _NO_PAIR:
        _check_pair(response.producer_id, response.producer_epoch)
    return m.EndTxnResponse(response.error_code, response.producer_id, response.producer_epoch)


def _offsets_committed(body: memoryview, version: int) -> m.TxnOffsetCommitResponse:
    response = compiled.decode(TxnOffsetCommitResponse, body, version)
    return m.TxnOffsetCommitResponse(
        tuple(partition.error_code for topic in response.topics for partition in topic.partitions)
    )


def _described(body: memoryview, version: int) -> m.MetadataResponse:
    response = compiled.decode(MetadataResponse, body, version)
    for broker in response.brokers:
        _check_address(broker.host, broker.port)
    brokers = tuple(m.Broker(broker.node_id, broker.host, broker.port) for broker in response.brokers)
    topics = tuple(m.TopicMetadata(topic.name, topic.error_code, _leaders(topic)) for topic in response.topics)
    return m.MetadataResponse(brokers, topics, response.cluster_id or "")


def _leaders(topic: Any) -> tuple[int, ...]:
    """Return the leader of each partition; -1 for one that is not described, whose leader is unknown then.

    Raises ValueError for an invalid partition number.
    """
    leaders = {partition.partition_index: partition.leader_id for partition in topic.partitions}
    if any(not 0 <= partition < _MOST_PARTITIONS for partition in leaders):
        raise ValueError(f"topic {topic.name!r} has partitions {min(leaders)} to {max(leaders)}")
    return tuple(leaders.get(partition, -1) for partition in range(max(leaders, default=-1) + 1))


_DECODERS: Final[Mapping[type[m.Request], Callable[[memoryview, int], m.Response]]] = {
    m.FindCoordinator: _found_coordinator,
    m.InitProducerId: _initialised,
    m.AddPartitionsToTxn: _partitions_added,
    m.AddOffsetsToTxn: _offsets_added,
    m.EndTxn: _ended,
    m.TxnOffsetCommit: _offsets_committed,
    m.DescribeTransaction: _transaction_described,
    m.DescribeProducers: _producers_described,
    m.ApiVersions: _features,
    m.Metadata: _described,
}
