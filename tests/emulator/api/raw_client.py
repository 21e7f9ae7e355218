"""A blocking client on one socket, with kio's codec in the client's direction."""

from __future__ import annotations

import importlib
import io
import socket
import struct
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from kio.serial import entity_reader, entity_writer

from dualwrite.broker_emulator.api.message_schemas import request_schema, response_schema, versions_of
from dualwrite.broker_emulator.log.record_batch import build_batch

KEYS = {
    "produce": 0,
    "fetch": 1,
    "list_offsets": 2,
    "metadata": 3,
    "offset_commit": 8,
    "offset_fetch": 9,
    "find_coordinator": 10,
    "join_group": 11,
    "heartbeat": 12,
    "leave_group": 13,
    "sync_group": 14,
    "describe_groups": 15,
    "list_groups": 16,
    "sasl_handshake": 17,
    "api_versions": 18,
    "create_topics": 19,
    "delete_topics": 20,
    "delete_records": 21,
    "init_producer_id": 22,
    "offset_for_leader_epoch": 23,
    "add_partitions_to_txn": 24,
    "add_offsets_to_txn": 25,
    "end_txn": 26,
    "write_txn_markers": 27,
    "txn_offset_commit": 28,
    "describe_acls": 29,
    "create_acls": 30,
    "delete_acls": 31,
    "alter_replica_log_dirs": 34,
    "describe_configs": 32,
    "alter_configs": 33,
    "describe_log_dirs": 35,
    "sasl_authenticate": 36,
    "create_partitions": 37,
    "delete_groups": 42,
    "elect_leaders": 43,
    "incremental_alter_configs": 44,
    "alter_partition_reassignments": 45,
    "list_partition_reassignments": 46,
    "offset_delete": 47,
    "describe_client_quotas": 48,
    "alter_client_quotas": 49,
    "describe_user_scram_credentials": 50,
    "alter_user_scram_credentials": 51,
    "describe_quorum": 55,
    "update_features": 57,
    "describe_cluster": 60,
    "describe_producers": 61,
    "describe_transactions": 65,
    "list_transactions": 66,
    "consumer_group_heartbeat": 68,
    "consumer_group_describe": 69,
    "list_config_resources": 74,
    "describe_topic_partitions": 75,
    "share_group_heartbeat": 76,
    "share_group_describe": 77,
    "share_fetch": 78,
    "share_acknowledge": 79,
    "initialize_share_group_state": 83,
    "read_share_group_state": 84,
    "write_share_group_state": 85,
    "delete_share_group_state": 86,
    "read_share_group_state_summary": 87,
    "describe_share_group_offsets": 90,
    "alter_share_group_offsets": 91,
    "delete_share_group_offsets": 92,
}
ALL_VERSIONS = [(api, version) for api in KEYS for version in versions_of(api)]
TIMEOUT_S = 60.0


def milliseconds(value: int) -> Any:
    return timedelta(milliseconds=value)


@cache
def request_type(api: str, version: int) -> Any:
    return request_schema(KEYS[api], version)


@cache
def request_parts(api: str, version: int) -> Any:
    """Return builders of the nested types of a request; they ignore fields that the version does not have."""
    module = importlib.import_module(request_type(api, version).__module__)
    return SimpleNamespace(**{name: builder(member) for name, member in vars(module).items() if is_dataclass(member)})


def builder(entity_type: Any) -> Any:
    known = {member.name for member in fields(entity_type)}
    return lambda **values: entity_type(**{name: value for name, value in values.items() if name in known})


def encode(api: str, version: int, correlation_id: int, client_id: str | None, **values: Any) -> bytes:
    """Return a whole request frame."""
    kind: Any = request_type(api, version)
    buffer = io.BytesIO()
    encoded = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(encoded)
    buffer.write(struct.pack(">hhih", KEYS[api], version, correlation_id, size) + encoded)
    if kind.__header_schema__.__flexible__:
        buffer.write(b"\0")
    entity_writer(kind)(buffer, builder(kind)(**values))
    return struct.pack(">i", buffer.tell()) + buffer.getvalue()


def decode(api: str, version: int, frame: bytes) -> tuple[int, Any]:
    """Return the correlation id and the response; every byte must have been decoded."""
    kind: Any = response_schema(KEYS[api], version)
    offset = 5 if kind.__header_schema__.__flexible__ else 4
    response, size = entity_reader(kind)(frame, offset)
    assert offset + size == len(frame)
    return struct.unpack_from(">i", frame)[0], response


class RawClient:
    """One connection."""

    def __init__(self, address: str, client_id: str | None = "raw") -> None:
        host, _, port = address.split(",")[0].rpartition(":")
        self.client_id = client_id
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def be_patient_for(self, duration_s: float) -> None:
        """Raise TimeoutError from now on if a response takes longer."""
        self._socket.settimeout(duration_s)

    def call(self, api: str, version: int, **values: Any) -> Any:
        """Send one request and return its response."""
        return self.receive(api, version, self.send(api, version, **values))

    def send(self, api: str, version: int, **values: Any) -> int:
        self._correlation_id += 1
        self.send_bytes(encode(api, version, self._correlation_id, self.client_id, **values))
        return self._correlation_id

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, api: str, version: int, correlation_id: int) -> Any:
        answered, response = decode(api, version, self.receive_frame())
        assert answered == correlation_id
        return response

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            received = self._socket.recv(size - len(data))
            if not received:
                raise ConnectionResetError("the broker closed the connection")
            data += received
        return data

    def read_to_the_end(self) -> None:
        """Shut down the sending half, and read until the broker closes the connection."""
        self._socket.shutdown(socket.SHUT_WR)
        while self._socket.recv(1 << 16):
            pass

    def is_silent(self, duration_s: float = 0.05) -> bool:
        """Return whether nothing arrives for a while."""
        self._socket.settimeout(duration_s)
        try:
            return not self._socket.recv(1)
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(TIMEOUT_S)

    def is_closed(self) -> bool:
        """Wait until the broker closes the connection; return False if it sends data instead."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    # the requests that many tests need, in their newest versions

    def init_producer_id(self, transactional_id: str | None, **values: Any) -> Any:
        defaults = {"transaction_timeout": milliseconds(60_000), "enable2_pc": False, "keep_prepared_txn": False}
        return self.call("init_producer_id", 6, transactional_id=transactional_id, **{**defaults, **values})

    def metadata(self, *topics: str) -> Any:
        parts = request_parts("metadata", 12)
        named = tuple(parts.MetadataRequestTopic(name=topic, topic_id=None) for topic in topics)
        return self.call("metadata", 12, topics=named, include_topic_authorized_operations=False)

    def topic_id(self, topic: str) -> Any:
        return self.metadata(topic).topics[0].topic_id

    def create_topic(
        self, name: str, partitions: int = 1, copies: int = 1, *, version: int = 7, **configs: str | None
    ) -> Any:
        """Create a topic; return its part of the response."""
        parts = request_parts("create_topics", version)
        rows = tuple(
            parts.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        )
        topic = parts.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=copies, assignments=(), configs=rows
        )
        timeout = milliseconds(30_000)
        return self.call("create_topics", version, topics=(topic,), timeout=timeout, validate_only=False).topics[0]

    def list_offsets(
        self, topic: str, timestamp: int = -1, *, version: int = 7, isolation_level: int = 0, leader_epoch: int = -1
    ) -> Any:
        """Return the part of partition 0 of the response."""
        parts = request_parts("list_offsets", version)
        partition = parts.ListOffsetsPartition(
            partition_index=0, timestamp=timestamp, current_leader_epoch=leader_epoch
        )
        topics = (parts.ListOffsetsTopic(name=topic, partitions=(partition,)),)
        fields = {"replica_id": -1, "isolation_level": isolation_level, "timeout": milliseconds(0)}
        return self.call("list_offsets", version, topics=topics, **fields).topics[0].partitions[0]

    def end_txn(self, transactional_id: str, producer: Any, *, commit: bool, version: int = 5) -> Any:
        return self.call(
            "end_txn",
            version,
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=commit,
        )

    def produce(
        self,
        topic: Any,
        records: bytes | None,
        *,
        transactional_id: str | None = None,
        version: int = 12,
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 1000,
    ) -> Any:
        """Produce to one partition; return its part of the response."""
        response = self.call(
            "produce", version, **produce_fields(version, topic, records, transactional_id, partition, acks, timeout_ms)
        )
        return response.responses[0].partition_responses[0]

    def fetch(
        self,
        topic: Any,
        *,
        offset: int = 0,
        isolation_level: int = 1,
        max_wait_ms: int = 0,
        version: int = 12,
        **values: Any,
    ) -> Any:
        """Fetch from one partition, 0 unless told otherwise; return its part of the response."""
        response = self.call(
            "fetch", version, **fetch_fields(version, topic, offset, isolation_level, max_wait_ms, **values)
        )
        return response.responses[0].partitions[0]

    def offset_fetch(self, group_id: str, topic: str, *, require_stable: bool = True, version: int = 8) -> Any:
        """Return the group's offset of partition 0."""
        parts = request_parts("offset_fetch", version)
        topics = (parts.OffsetFetchRequestTopics(name=topic, partition_indexes=(0,)),)
        groups = (parts.OffsetFetchRequestGroup(group_id=group_id, topics=topics),)
        response = self.call("offset_fetch", version, groups=groups, require_stable=require_stable)
        return response.groups[0].topics[0].partitions[0]

    def txn_offset_commit(
        self,
        transactional_id: str,
        producer: Any,
        group_id: str,
        topic: str,
        offset: int,
        *,
        version: int = 5,
        metadata: str = "",
        **values: Any,
    ) -> Any:
        """Commit one offset of partition 0; return its error code."""
        parts = request_parts("txn_offset_commit", version)
        partition = parts.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata
        )
        response = self.call(
            "txn_offset_commit",
            version,
            transactional_id=transactional_id,
            group_id=group_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=(parts.TxnOffsetCommitRequestTopic(name=topic, partitions=(partition,)),),
            **values,
        )
        return response.topics[0].partitions[0].error_code


def produce_fields(
    version: int,
    topic: Any,
    records: bytes | None,
    transactional_id: str | None = None,
    partition: int = 0,
    acks: int = -1,
    timeout_ms: int = 1000,
) -> dict[str, Any]:
    parts = request_parts("produce", version)
    data = parts.PartitionProduceData(index=partition, records=records)
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": milliseconds(timeout_ms),
        "topic_data": (parts.TopicProduceData(name=topic, topic_id=topic, partition_data=(data,)),),
    }


def fetch_fields(
    version: int,
    topic: Any,
    offset: int = 0,
    isolation_level: int = 1,
    max_wait_ms: int = 0,
    *,
    min_bytes: int = 1,
    max_bytes: int = 2**31 - 1,
    partition_max_bytes: int = 2**20,
    session_id: int = 0,
    session_epoch: int = -1,
    current_leader_epoch: int = -1,
    partition: int = 0,
) -> dict[str, Any]:
    parts = request_parts("fetch", version)
    asked = parts.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=partition_max_bytes,
        current_leader_epoch=current_leader_epoch,
    )
    return {
        "replica_id": -1,
        "max_wait": milliseconds(max_wait_ms),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": (parts.FetchTopic(topic=topic, topic_id=topic, partitions=(asked,)),),
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def batch_of(producer: Any, *values: bytes, sequence: int = 0) -> bytes:
    """Return a transactional batch of the producer in an InitProducerId or EndTxn response."""
    return build_batch(
        [(None, value) for value in values],
        timestamp_ms=1_700_000_000_000,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )


def plain_batch(*values: bytes) -> bytes:
    """Return a batch without a producer id."""
    return build_batch([(None, value) for value in values], timestamp_ms=1_700_000_000_000)
