"""A blocking client on one socket, with kio's codec in the client's direction."""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import TracebackType
from typing import Any, Self, get_args, get_origin

from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from dualwrite.broker_emulator.api.registry import APIS
from dualwrite.broker_emulator.log.record_batch import build_batch
from dualwrite.broker_emulator.messages.request_bounds import without_none
from dualwrite.broker_emulator.messages.schemas import request_schema, response_schema, versions_of

KEYS = {name: key for key, name in api_key_map.items() if key in APIS}
ALL_VERSIONS = [(api, version) for api in KEYS for version in versions_of(api)]
TIMEOUT_S = 60.0


def milliseconds(value: int) -> Any:
    return timedelta(milliseconds=value)


@cache
def request_type(api: str, version: int) -> Any:
    return request_schema(KEYS[api], version)


def entity(kind: Any, values: Mapping[str, Any]) -> Any:
    """Build a message from its fields, ignoring those that the version does not have; nested messages are mappings."""
    return kind(
        **{name: nested(inner, values[name]) for name, inner in _types_of_fields(kind).items() if name in values}
    )


def nested(kind: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return entity(kind, value)
    return tuple(nested(kind, each) for each in value) if isinstance(value, tuple) and is_dataclass(kind) else value


@cache
def _types_of_fields(kind: Any) -> Mapping[str, Any]:
    """Return the types of a message's fields by name, of arrays those of the elements."""
    inner = {member.name: without_none(member.type) for member in fields(kind)}
    return {
        name: without_none(get_args(each)[0]) if get_origin(each) is tuple else each for name, each in inner.items()
    }


def encode(api: str, version: int, correlation_id: int, client_id: str | None, **values: Any) -> bytes:
    """Return a whole request frame."""
    kind: Any = request_type(api, version)
    buffer = io.BytesIO()
    encoded = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(encoded)
    buffer.write(struct.pack(">hhih", KEYS[api], version, correlation_id, size) + encoded)
    if kind.__header_schema__.__flexible__:
        buffer.write(b"\0")
    entity_writer(kind)(buffer, entity(kind, values))
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
        named = tuple({"name": topic, "topic_id": None} for topic in topics)
        return self.call("metadata", 12, topics=named, include_topic_authorized_operations=False)

    def topic_id(self, topic: str) -> Any:
        return self.metadata(topic).topics[0].topic_id

    def create_topic(
        self, name: str, partitions: int = 1, copies: int = 1, *, version: int = 7, **configs: str | None
    ) -> Any:
        """Create a topic; return its part of the response."""
        rows = tuple({"name": key.replace("_", "."), "value": value} for key, value in configs.items())
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": copies,
            "assignments": (),
            "configs": rows,
        }
        timeout = milliseconds(30_000)
        return self.call("create_topics", version, topics=(topic,), timeout=timeout, validate_only=False).topics[0]

    def delete_topic(self, name: str) -> Any:
        """Delete a topic; return its part of the response."""
        topics = ({"name": name, "topic_id": None},)
        return self.call("delete_topics", 6, topics=topics, timeout=milliseconds(10_000)).responses[0]

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> Any:
        """Delete the records before an offset; return the partition's part of the response."""
        topics = ({"name": topic, "partitions": ({"partition_index": partition, "offset": offset},)},)
        return self.call("delete_records", 2, topics=topics, timeout=milliseconds(1000)).topics[0].partitions[0]

    def add_partitions(self, transactional_id: str, producer: Any, topic: str, *partitions: int) -> list[int]:
        """Add partitions of a topic to the transaction, as old clients do; return the error of each."""
        fields = add_partitions_fields(transactional_id, producer, topic, *partitions)
        (answered,) = self.call("add_partitions_to_txn", 3, **fields).results_by_topic_v3_and_below
        return [int(row.partition_error_code) for row in answered.results_by_partition]

    def list_offsets(
        self, topic: str, timestamp: int = -1, *, version: int = 7, isolation_level: int = 0, leader_epoch: int = -1
    ) -> Any:
        """Return the part of partition 0 of the response."""
        partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": leader_epoch}
        topics = ({"name": topic, "partitions": (partition,)},)
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
        topics = ({"name": topic, "partition_indexes": (0,)},)
        groups = ({"group_id": group_id, "topics": topics},)
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
        partition = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }
        response = self.call(
            "txn_offset_commit",
            version,
            transactional_id=transactional_id,
            group_id=group_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=({"name": topic, "partitions": (partition,)},),
            **values,
        )
        return response.topics[0].partitions[0].error_code


def add_partitions_fields(transactional_id: str, producer: Any, topic: str, *partitions: int) -> dict[str, Any]:
    """Return the fields of AddPartitionsToTxn up to version 3."""
    named = {
        "transactional_id": transactional_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "topics": ({"name": topic, "partitions": partitions},),
    }
    return {f"v3_and_below_{name}": value for name, value in named.items()}


def produce_fields(
    version: int,
    topic: Any,
    records: bytes | None,
    transactional_id: str | None = None,
    partition: int = 0,
    acks: int = -1,
    timeout_ms: int = 1000,
) -> dict[str, Any]:
    data = {"index": partition, "records": records}
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": milliseconds(timeout_ms),
        "topic_data": ({"name": topic, "topic_id": topic, "partition_data": (data,)},),
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
    asked = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": partition_max_bytes,
        "current_leader_epoch": current_leader_epoch,
    }
    return {
        "replica_id": -1,
        "max_wait": milliseconds(max_wait_ms),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": ({"topic": topic, "topic_id": topic, "partitions": (asked,)},),
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
