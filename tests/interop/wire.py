"""A third client for the broker tests: one request, one response, on one plain blocking socket.

It uses kafka-python's codec and nothing of `dualwrite`, so that it shows the wire of the emulator and of a real Apache
Kafka, not our reading of it. It retries nothing and hides no error code.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self, TypeVar

from kafka.protocol import admin, consumer, producer, sasl
from kafka.protocol import metadata as metadata_requests
from kafka.protocol.api_message import ApiMessage
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

DEADLINE_S = 60.0
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST, LATEST = -2, -1
TRANSACTION, GROUP = 1, 0
LAST_CLIENT_EPOCH = 32766
AT_ONCE: dict[str, Any] = {
    **{"replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0},
    **{"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""},
}
"""The fields of a Fetch without a session that does not wait."""
FROM_THE_BEGINNING = {
    **{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20},
    **{"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1},
}
"""Those of its partition."""


T = TypeVar("T")


class Code(IntEnum):
    """The error codes that these tests meet, by Kafka's names."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INVALID_GROUP_ID = 24
    TOPIC_AUTHORIZATION_FAILED = 29
    UNKNOWN_MEMBER_ID = 25
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    UNKNOWN_LEADER_EPOCH = 75
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    TRANSACTIONAL_ID_NOT_FOUND = 105
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


def code_of(number: int) -> Code | int:
    try:
        return Code(number)
    except ValueError:
        return number


@dataclass(frozen=True, slots=True)
class Identity:
    """A producer id with its epoch."""

    producer_id: int
    producer_epoch: int

    def bumped(self, by: int = 1) -> Identity:
        return Identity(self.producer_id, self.producer_epoch + by)

    @property
    def fields(self) -> dict[str, int]:
        """As requests have it."""
        return {"producer_id": self.producer_id, "producer_epoch": self.producer_epoch}


NO_IDENTITY = Identity(-1, -1)


@dataclass(frozen=True, slots=True)
class Init:
    """Response of InitProducerId."""

    error: Code | int
    identity: Identity
    ongoing: Identity = NO_IDENTITY


@dataclass(frozen=True, slots=True)
class End:
    """Response of EndTxn; versions below 5 carry no identity."""

    error: Code | int
    identity: Identity = NO_IDENTITY


@dataclass(frozen=True, slots=True)
class Produced:
    """Response of Produce for one partition."""

    error: Code | int
    base_offset: int


@dataclass(frozen=True, slots=True)
class Described:
    """Response of DescribeTransactions for one transactional id; of its start time only whether there is one."""

    error: Code | int
    state: str
    timeout_ms: int
    identity: Identity
    started: bool
    topics: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """One entry of DescribeProducers, without its timestamp."""

    identity: Identity
    last_sequence: int
    coordinator_epoch: int
    txn_start_offset: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One record batch as a fetch returns it."""

    base_offset: int
    next_offset: int
    """The next offset to read: a compacted batch has fewer records than offsets."""
    identity: Identity
    keys: tuple[bytes | None, ...]
    values: tuple[bytes | None, ...]
    is_transactional: bool
    is_control: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """Response of Fetch for one partition."""

    error: Code | int
    high_watermark: int
    last_stable_offset: int
    aborted: tuple[tuple[int, int], ...] | None
    batches: tuple[Batch, ...]


def record_batch(
    values: Sequence[bytes],
    identity: Identity = NO_IDENTITY,
    sequence: int = -1,
    *,
    transactional: bool = False,
    timestamp_ms: int | None = None,
) -> bytes:
    """A record batch of format v2 with these values and null keys."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=transactional,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=sequence,
        batch_size=1 << 20,
    )
    now_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    for offset, value in enumerate(values):
        builder.append(offset, now_ms, None, value, [])
    return bytes(builder.build())


def message(api: str, version: int, **fields: Any) -> ApiMessage:
    """A request whose structs are given as dictionaries."""
    modules = (admin, consumer, metadata_requests, producer, sasl)
    kind = next(getattr(module, f"{api}Request") for module in modules if hasattr(module, f"{api}Request"))
    request: ApiMessage = kind(version=version, **_structs(kind._struct, version, fields))
    return request


def _structs(struct: Any, version: int, values: Mapping[str, Any]) -> dict[str, Any]:
    by_name = {field.name: field for field in struct._fields}
    return {name: _value(by_name[name], version, value) for name, value in values.items()}


def _value(field: Any, version: int, value: Any) -> Any:
    if isinstance(value, dict):
        return field.data_class(version=version, **_structs(field, version, value))
    if isinstance(value, list) and value and isinstance(value[0], dict):
        inner = field.array_of
        return [field.data_class(version=version, **_structs(inner, version, item)) for item in value]
    return value


class ConnectionClosedError(Exception):
    """The broker closed the connection instead of answering."""


class Wire:
    """One connection to one broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, port = bootstrap_servers.split(",")[0].rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_ids = itertools.count(1)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- frames

    def call(self, request: ApiMessage, client_id: str = "wire") -> Any:
        """Send `request` and return the decoded response."""
        request.with_header(correlation_id=next(self._correlation_ids), client_id=client_id)
        answer = self.exchange(request.encode(header=True))
        response_class = request.header.get_response_class()
        return response_class.decode(answer, version=request.API_VERSION, header=True)

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        """Call with a request whose structs are given as dictionaries."""
        return self.call(message(api, version, **fields))

    def exchange(self, frame: bytes) -> bytes:
        """Send one frame as it is and return the response's frame. Raises ConnectionClosedError."""
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            return self._receive()
        except ConnectionError as error:
            raise ConnectionClosedError from error

    def _receive(self) -> bytes:
        (length,) = struct.unpack(">i", self._read(4))
        return self._read(length)

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = self._socket.recv(count - len(data))
            if not chunk:
                raise ConnectionClosedError
            data += chunk
        return bytes(data)

    # -- a client's first requests

    def api_versions(self) -> Any:
        return self.ask("ApiVersions", 4, client_software_name="wire", client_software_version="1")

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic and wait until each partition has a leader."""
        topic = {
            **{"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": []},
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        answer = self.ask("CreateTopics", 5, topics=[topic], timeout_ms=10_000, validate_only=False)
        assert answer.topics[0].error_code == 0, answer
        # the metadata names a leader before that has opened its log
        wait_until(lambda: all(self._leads(name, partition) for partition in range(partitions)))

    def _leads(self, topic: str, partition: int) -> bool:
        return bool(self._list_offsets(topic, partition, LATEST, READ_UNCOMMITTED, 7).error_code == 0)

    def find_coordinator(self, key: str, key_type: int = TRANSACTION, *, version: int = 3) -> Code | int:
        return code_of(self.ask("FindCoordinator", version, key=key, key_type=key_type).error_code)

    def wait_for_coordinator(self, key: str, key_type: int = TRANSACTION) -> None:
        """The first look-up creates the internal topic, which takes a moment."""
        wait_until(lambda: self.find_coordinator(key, key_type) == Code.NONE)
        if key_type == GROUP:
            wait_until(lambda: self.offset_fetch(key, "any")[0] not in _RETRIED)

    # -- transaction coordinator

    def init(
        self,
        transactional_id: str | None,
        expected: Identity = NO_IDENTITY,
        *,
        version: int = 5,
        timeout_ms: int = 60_000,
        enable_2pc: bool = False,
        keep: bool = False,
    ) -> Init:
        extra = {"enable2_pc": enable_2pc, "keep_prepared_txn": keep} if version >= 6 else {}
        fields = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms, **expected.fields}
        answer = self.ask("InitProducerId", version, **fields, **extra)
        error, identity = code_of(answer.error_code), Identity(answer.producer_id, answer.producer_epoch)
        if version < 6:
            return Init(error, identity)
        return Init(error, identity, Identity(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch))

    def init_ok(self, transactional_id: str | None, expected: Identity = NO_IDENTITY, **settings: Any) -> Identity:
        """Init as a client does it: repeated while the coordinator is loading or busy with a transaction's end."""
        answer = wait_for(
            lambda: self.init(transactional_id, expected, **settings), lambda answer: answer.error not in _RETRIED
        )
        assert answer.error == Code.NONE, answer
        return answer.identity

    def exhaust_epochs(self, transactional_id: str, *, timeout_ms: int = 60_000) -> Identity:
        """InitProducerId, sent ahead of its responses, until the identity has the last epoch a client may hold."""
        identity = self.init_ok(transactional_id)
        fields = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms, **NO_IDENTITY.fields}
        request = message("InitProducerId", 5, **fields)
        request.with_header(correlation_id=0, client_id="wire")
        frame = request.encode(header=True, framed=True)
        missing = LAST_CLIENT_EPOCH - identity.producer_epoch
        while missing:
            count = min(missing, 200)
            self._socket.sendall(frame * count)
            for _ in range(count):
                self._receive()
            missing -= count
        identity = self.describe(transactional_id).identity
        assert identity.producer_epoch == LAST_CLIENT_EPOCH, identity
        return identity

    def add(
        self, transactional_id: str, identity: Identity, *partitions: tuple[str, int], version: int = 3
    ) -> list[Code | int]:
        """AddPartitionsToTxn v0-3; the codes in the order of `partitions`."""
        answer = self.ask(
            "AddPartitionsToTxn",
            version,
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[{"name": name, "partitions": [partition]} for name, partition in partitions],
        )
        codes = {
            (topic.name, result.partition_index): code_of(result.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }
        return [codes[partition] for partition in partitions]

    def add_broker(
        self,
        transactional_id: str,
        identity: Identity,
        partition: tuple[str, int],
        *,
        verify_only: bool,
        version: int = 5,
    ) -> Code | int:
        """AddPartitionsToTxn v4+, as brokers send it to the coordinator."""
        topic = {"name": partition[0], "partitions": [partition[1]]}
        transaction = {"transactional_id": transactional_id, "verify_only": verify_only, "topics": [topic]}
        answer = self.ask("AddPartitionsToTxn", version, transactions=[transaction | identity.fields])
        if answer.error_code:
            return code_of(answer.error_code)
        result = answer.results_by_transaction[0].topic_results[0].results_by_partition[0]
        return code_of(result.partition_error_code)

    def add_offsets(self, transactional_id: str, identity: Identity, group: str, *, version: int = 3) -> Code | int:
        fields = {"transactional_id": transactional_id, "group_id": group, **identity.fields}
        return code_of(self.ask("AddOffsetsToTxn", version, **fields).error_code)

    def end(self, transactional_id: str, identity: Identity, *, commit: bool, version: int = 5) -> End:
        fields = {"transactional_id": transactional_id, "committed": commit, **identity.fields}
        answer = self.ask("EndTxn", version, **fields)
        if version < 5:
            return End(code_of(answer.error_code))
        return End(code_of(answer.error_code), Identity(answer.producer_id, answer.producer_epoch))

    def end_settled(self, transactional_id: str, identity: Identity, *, commit: bool, version: int = 5) -> End:
        """EndTxn repeated while it answers CONCURRENT_TRANSACTIONS, then waited for until its markers are written."""
        answer = wait_for(
            lambda: self.end(transactional_id, identity, commit=commit, version=version),
            lambda answer: answer.error not in _RETRIED,
        )
        self.wait_until_settled(transactional_id)
        return answer

    def wait_until_settled(self, transactional_id: str) -> Described:
        return wait_for(
            lambda: self.describe(transactional_id), lambda described: not described.state.startswith("Prepare")
        )

    def describe(self, transactional_id: str) -> Described:
        answer = self.ask("DescribeTransactions", 0, transactional_ids=[transactional_id])
        (state,) = answer.transaction_states
        return Described(
            error=code_of(state.error_code),
            state=state.transaction_state,
            timeout_ms=state.transaction_timeout_ms,
            identity=Identity(state.producer_id, state.producer_epoch),
            started=state.transaction_start_time_ms >= 0,
            topics={topic.topic: sorted(topic.partitions) for topic in state.topics},
        )

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        duration_ms: int | None = None,
        pattern: str | None = None,
        version: int = 2,
    ) -> tuple[Code | int, list[str], dict[str, tuple[int, str]]]:
        """Error, unknown state filters, and `{transactional id: (producer id, state)}`."""
        extra: dict[str, Any] = {}
        if version >= 1:
            extra["duration_filter"] = -1 if duration_ms is None else duration_ms
        if version >= 2:
            extra["transactional_id_pattern"] = pattern
        filters = {"state_filters": list(states), "producer_id_filters": list(producer_ids)}
        answer = self.ask("ListTransactions", version, **filters, **extra)
        rows = {row.transactional_id: (row.producer_id, row.transaction_state) for row in answer.transaction_states}
        return code_of(answer.error_code), list(answer.unknown_state_filters), rows

    # -- partitions

    def produce(
        self,
        transactional_id: str | None,
        identity: Identity,
        topic: str,
        sequence: int,
        *values: bytes,
        partition: int = 0,
        version: int = 12,
        transactional: bool = True,
        acks: int = -1,
    ) -> Produced:
        batch = record_batch(values or (b"v",), identity, sequence, transactional=transactional)
        return self.produce_bytes(transactional_id, topic, batch, partition=partition, version=version, acks=acks)

    def write(self, topic: str, *values: bytes) -> None:
        """Produce a batch without a producer id, which is stored."""
        assert self.produce(None, NO_IDENTITY, topic, -1, *values, transactional=False).error == Code.NONE

    def produce_bytes(
        self,
        transactional_id: str | None,
        topic: str,
        records: bytes | None,
        *,
        partition: int = 0,
        version: int = 12,
        acks: int = -1,
    ) -> Produced:
        answer = self.call(_produce(version, transactional_id, acks, ((topic, partition), records)))
        result = answer.responses[0].partition_responses[0]
        return Produced(code_of(result.error_code), result.base_offset)

    def produce_answer(self, topic: str, records: bytes) -> Any:
        """Produce v11 to partition 0; the whole response for it."""
        return self.call(_produce(11, None, -1, ((topic, 0), records))).responses[0].partition_responses[0]

    def produce_to(
        self,
        transactional_id: str | None,
        *writes: tuple[tuple[str, int], bytes],
        version: int = 12,
        acks: int = -1,
        client_id: str = "wire",
    ) -> list[Code | int]:
        """Produce to several partitions; the codes in the order of `writes`."""
        codes = {
            (topic.name, result.index): code_of(result.error_code)
            for topic in self.call(_produce(version, transactional_id, acks, *writes), client_id).responses
            for result in topic.partition_responses
        }
        return [codes[partition] for partition, _ in writes]

    def produce_settled(self, transactional_id: str, identity: Identity, topic: str, sequence: int) -> Produced:
        """Produce repeated while the transaction before it is still being completed."""
        return wait_for(
            lambda: self.produce(transactional_id, identity, topic, sequence),
            lambda answer: answer.error not in _RETRIED,
        )

    def list_offsets(
        self,
        topic: str,
        timestamp: int = LATEST,
        isolation: int = READ_UNCOMMITTED,
        *,
        partition: int = 0,
        version: int = 7,
    ) -> int:
        """The partition's leader may be on its way still, as those of an internal topic that was just made are."""
        result: Any = None

        def is_led() -> bool:
            nonlocal result
            result = self._list_offsets(topic, partition, timestamp, isolation, version)
            return result.error_code not in _NO_LEADER_YET

        wait_until(is_led)
        assert result.error_code == 0, result
        return int(result.offset)

    def _list_offsets(self, topic: str, partition: int, timestamp: int, isolation: int, version: int) -> Any:
        asked = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": topic, "partitions": [asked]}]
        answer = self.ask("ListOffsets", version, replica_id=-1, isolation_level=isolation, topics=topics)
        return answer.topics[0].partitions[0]

    def fetch(
        self,
        topic: str,
        offset: int = 0,
        isolation: int = READ_UNCOMMITTED,
        *,
        partition: int = 0,
        max_bytes: int = 1 << 20,
        version: int = 11,
    ) -> Fetched:
        result = self._fetch(topic, offset, isolation, partition, max_bytes, version)
        aborted = result.aborted_transactions
        return Fetched(
            error=code_of(result.error_code),
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            aborted=None if aborted is None else tuple((entry.producer_id, entry.first_offset) for entry in aborted),
            batches=tuple(_batches(bytes(result.records or b""))),
        )

    def fetch_bytes(
        self,
        topic: str,
        offset: int,
        isolation: int = READ_UNCOMMITTED,
        *,
        partition: int = 0,
        max_bytes: int = 1 << 20,
    ) -> bytes:
        """The batches as they came, the last perhaps cut off."""
        result = self._fetch(topic, offset, isolation, partition, max_bytes, 11)
        assert result.error_code == 0, result
        return bytes(result.records or b"")

    def _fetch(self, topic: str, offset: int, isolation: int, partition: int, max_bytes: int, version: int) -> Any:
        asked = FROM_THE_BEGINNING | {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        answer = self.ask(
            "Fetch",
            version,
            **AT_ONCE | {"max_bytes": max_bytes, "isolation_level": isolation},
            topics=[{"topic": topic, "partitions": [asked]}],
        )
        return answer.responses[0].partitions[0]

    def producers(self, topic: str, partition: int = 0) -> tuple[Code | int, dict[int, ActiveProducer]]:
        answer = self.ask("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [partition]}])
        result = answer.topics[0].partitions[0]
        entries = {
            entry.producer_id: ActiveProducer(
                Identity(entry.producer_id, entry.producer_epoch),
                entry.last_sequence,
                entry.coordinator_epoch,
                entry.current_txn_start_offset,
            )
            for entry in result.active_producers
        }
        return code_of(result.error_code), entries

    def write_marker(
        self,
        identity: Identity,
        topic: str,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        partition: int = 0,
        transaction_version: int | None = None,
    ) -> Code | int:
        """WriteTxnMarkers v1, as a coordinator (or KIP-664's abort tool) sends it; v2 with a transaction version."""
        extra = {} if transaction_version is None else {"transaction_version": transaction_version}
        marker = {
            **identity.fields,
            **{"transaction_result": commit, "coordinator_epoch": coordinator_epoch, **extra},
            "topics": [{"name": topic, "partition_indexes": [partition]}],
        }
        answer = self.ask("WriteTxnMarkers", 2 if extra else 1, markers=[marker])
        return code_of(answer.markers[0].topics[0].partitions[0].error_code)

    # -- group coordinator

    def txn_offset_commit(
        self,
        transactional_id: str,
        identity: Identity,
        group: str,
        topic: str,
        offset: int,
        *,
        version: int = 5,
        generation: int = -1,
        member: str = "",
        metadata: str = "",
    ) -> Code | int:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
        topics = [{"name": topic, "partitions": [partition | {"committed_metadata": metadata}]}]
        extra: dict[str, Any] = {}
        if version >= 3:
            extra = {"generation_id": generation, "member_id": member, "group_instance_id": None}
        fields = {"transactional_id": transactional_id, "group_id": group, **identity.fields}
        answer = self.ask("TxnOffsetCommit", version, topics=topics, **fields, **extra)
        return code_of(answer.topics[0].partitions[0].error_code)

    def offset_fetch(self, group: str, topic: str, *, require_stable: bool = False) -> tuple[Code | int, int]:
        """OffsetFetch v7 of partition 0: error and committed offset."""
        topics = [{"name": topic, "partition_indexes": [0]}]
        answer = self.ask("OffsetFetch", 7, group_id=group, topics=topics, require_stable=require_stable)
        if answer.error_code:
            return code_of(answer.error_code), -1
        result = answer.topics[0].partitions[0]
        return code_of(result.error_code), result.committed_offset


def _produce(
    version: int, transactional_id: str | None, acks: int, *writes: tuple[tuple[str, int], bytes | None]
) -> ApiMessage:
    topics = [
        {"name": topic, "partition_data": [{"index": partition, "records": records}]}
        for (topic, partition), records in writes
    ]
    fields = {"transactional_id": transactional_id, "acks": acks, "timeout_ms": 10_000, "topic_data": topics}
    return message("Produce", version, **fields)


_RETRIED = (
    Code.CONCURRENT_TRANSACTIONS,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
)
_NO_LEADER_YET = (Code.LEADER_NOT_AVAILABLE, Code.NOT_LEADER_OR_FOLLOWER)


def _batches(records: bytes) -> Iterator[Batch]:
    for batch in MemoryRecords(records):
        records_of_it = tuple(batch)
        yield Batch(
            base_offset=batch.base_offset,
            next_offset=batch.base_offset + batch.last_offset_delta + 1,
            identity=Identity(batch.producer_id, batch.producer_epoch),
            keys=tuple(record.key for record in records_of_it),
            values=tuple(record.value for record in records_of_it),
            is_transactional=batch.is_transactional,
            is_control=batch.is_control_batch,
        )


def wait_for(ask: Callable[[], T], good: Callable[[T], bool], deadline_s: float = DEADLINE_S) -> T:
    """Ask until the response is good; fails with the last one."""
    deadline = time.monotonic() + deadline_s
    while not good(answer := ask()):
        assert time.monotonic() < deadline, f"still {answer} after {deadline_s} s"
        time.sleep(0.005)
    return answer


def wait_until(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    wait_for(condition, bool, deadline_s)
