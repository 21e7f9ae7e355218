"""Requests and responses of a producer as plain values; `wire.codec` turns them into bytes and back."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.errors import Api

ANY_NODE = -1
"""Node id of a request that any broker can handle."""


class CoordinatorType(IntEnum):
    """FindCoordinator's key types."""

    GROUP = 0
    TRANSACTION = 1


class FindCoordinator(NamedTuple):
    """Find the coordinator of a transactional id or group."""

    key_type: CoordinatorType
    key: str


class InitProducerId(NamedTuple):
    """Get a producer id and epoch; for a transactional id this fences its previous owner (KIP-98, KIP-939).

    With a producer id and epoch given, it raises the epoch only if the id still has that pair (KIP-360).
    """

    transactional_id: str | None
    transaction_timeout_ms: int
    enable_2pc: bool
    keep_prepared_txn: bool
    producer_id: int = -1
    producer_epoch: int = -1


class DescribeTransaction(NamedTuple):
    """Read the coordinator's description of a transactional id; changes nothing (KIP-664)."""

    transactional_id: str


class DescribeProducers(NamedTuple):
    """Read from the leader of partitions which transactions are open there; changes nothing (KIP-664)."""

    partitions: tuple[TopicPartition, ...]


class AddPartitionsToTxn(NamedTuple):
    """Add partitions that are about to be written to; before transaction.version 2."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


class AddOffsetsToTxn(NamedTuple):
    """Add a group whose offsets are about to be committed; before transaction.version 2."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


class EndTxn(NamedTuple):
    """End a transaction; from transaction.version 2 on the response brings the next epoch (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    transaction_version: int = 2


class TxnOffsetCommit(NamedTuple):
    """Commit consumed offsets, which take effect with the transaction (KIP-447)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group: ConsumerGroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    transaction_version: int = 2


class ApiVersions(NamedTuple):
    """Read which versions this broker offers, and which features the cluster has finalised (KIP-584)."""


class Metadata(NamedTuple):
    """Read the brokers, and the partition leaders of these topics."""

    topics: tuple[str, ...]


class FindCoordinatorResponse(NamedTuple):
    error_code: int
    node_id: int = -1
    host: str = ""
    port: int = -1


class InitProducerIdResponse(NamedTuple):
    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1
    ongoing_producer_id: int = -1
    ongoing_producer_epoch: int = -1


class DescribeTransactionResponse(NamedTuple):
    """`state` is Kafka's name; `start_ms` is in milliseconds since 1970, -1 for none."""

    error_code: int
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    start_ms: int = -1
    timeout_ms: int = -1


class OpenAt(NamedTuple):
    """An open transaction in a partition: the epoch of its newest batch there, and its first offset."""

    producer_epoch: int
    start_offset: int


class PartitionProducers(NamedTuple):
    """The open transactions of a partition by producer id."""

    error_code: int
    open: Mapping[int, OpenAt]


class DescribeProducersResponse(NamedTuple):
    partitions: Mapping[TopicPartition, PartitionProducers]


class AddPartitionsToTxnResponse(NamedTuple):
    """The error code of each partition."""

    error_codes: Mapping[TopicPartition, int]


class AddOffsetsToTxnResponse(NamedTuple):
    error_code: int


class EndTxnResponse(NamedTuple):
    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1


class TxnOffsetCommitResponse(NamedTuple):
    """The error codes of all partitions, in the order of the response."""

    error_codes: tuple[int, ...]


class PartitionProduced(NamedTuple):
    """The result of one batch of a Produce request."""

    topic: str
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    message: str | None


class Broker(NamedTuple):
    node_id: int
    host: str
    port: int


class TopicMetadata(NamedTuple):
    """`leaders[partition]` is a node id, or -1 while there is none."""

    name: str
    error_code: int
    leaders: tuple[int, ...]


class MetadataResponse(NamedTuple):
    """`cluster_id` is "" if the broker does not say it."""

    brokers: tuple[Broker, ...]
    topics: tuple[TopicMetadata, ...]
    cluster_id: str = ""


class SaslHandshakeResponse(NamedTuple):
    """`mechanisms`: those that the broker has enabled, with or without the requested one."""

    error_code: int
    mechanisms: tuple[str, ...]


class SaslAuthenticateResponse(NamedTuple):
    """`session_lifetime_ms`: how long until the connection must log in again (KIP-368), 0: for ever."""

    error_code: int
    message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int


class BrokerFeatures(NamedTuple):
    """A broker's version ranges by API key, and the finalised `transaction.version` of the cluster (0 if unknown)."""

    error_code: int
    versions: Mapping[int, tuple[int, int]]
    transaction_version: int


Request = (
    FindCoordinator
    | InitProducerId
    | AddPartitionsToTxn
    | AddOffsetsToTxn
    | EndTxn
    | TxnOffsetCommit
    | DescribeTransaction
    | DescribeProducers
    | ApiVersions
    | Metadata
)
Response = (
    FindCoordinatorResponse
    | InitProducerIdResponse
    | AddPartitionsToTxnResponse
    | AddOffsetsToTxnResponse
    | EndTxnResponse
    | TxnOffsetCommitResponse
    | DescribeTransactionResponse
    | DescribeProducersResponse
    | BrokerFeatures
    | MetadataResponse
)

API_OF: dict[type[Request], Api] = {
    FindCoordinator: Api.FIND_COORDINATOR,
    InitProducerId: Api.INIT_PRODUCER_ID,
    AddPartitionsToTxn: Api.ADD_PARTITIONS_TO_TXN,
    AddOffsetsToTxn: Api.ADD_OFFSETS_TO_TXN,
    EndTxn: Api.END_TXN,
    TxnOffsetCommit: Api.TXN_OFFSET_COMMIT,
    DescribeTransaction: Api.DESCRIBE_TRANSACTIONS,
    DescribeProducers: Api.DESCRIBE_PRODUCERS,
    ApiVersions: Api.API_VERSIONS,
    Metadata: Api.METADATA,
}


def error_codes_of(response: Response) -> tuple[int, ...]:
    """Return the error codes of a response; none of Metadata, which has them by topic."""
    if isinstance(response, TxnOffsetCommitResponse):
        return response.error_codes
    if isinstance(response, AddPartitionsToTxnResponse):
        return tuple(response.error_codes.values())
    if isinstance(response, DescribeProducersResponse):
        return tuple(described.error_code for described in response.partitions.values())
    return () if isinstance(response, MetadataResponse) else (response.error_code,)
