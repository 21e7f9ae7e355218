"""A producer of one transactional id by either set of rules, and waits for the coordinator's steps.

"New" is transaction version 2 (Produce v12, EndTxn v5: partitions are added implicitly, each transaction bumps the
epoch), "old" is the protocol before KIP-890 (AddPartitionsToTxn v3, Produce v11, EndTxn v4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from dualwrite.broker_emulator import BrokerConfig, Emulator, Fault, FaultHandle, PausePoint, Profile, VirtualClock
from tests.emulator.api.raw_client import RawClient, batch_of, milliseconds, produce_fields, request_parts

TIMEOUT_MS = 1000
ALL_PROFILES = tuple(Profile)
NEW_PROFILES = (Profile.KIP_939, Profile.KAFKA_4_3)


@contextmanager
def racing(profile: Profile = Profile.KIP_939) -> Iterator[Emulator]:
    """An emulator whose time stands still."""
    config = BrokerConfig(profile=profile, transaction_state_log_num_partitions=3, offsets_topic_num_partitions=3)
    with Emulator(config=config, clock=VirtualClock(), topics={"t": 2}) as emulator:
        yield emulator


def completion(emulator: Emulator) -> FaultHandle:
    """Observes each Complete record."""
    return emulator.faults.add(Fault(point=PausePoint.AFTER_COMPLETE_APPEND))


def state(emulator: Emulator) -> str:
    """The state of the only transactional id."""
    (described,) = emulator.transactions()
    return described.state


class Racer:
    """One producer on a connection of its own."""

    def __init__(self, emulator: Emulator, *, new: bool = True, name: str = "racer") -> None:
        self.client = RawClient(emulator.bootstrap_servers, name)
        self.new = new
        self.producer: Any = None
        self._sequences = Counter[int]()
        self._init_version = 5

    def init(self, **values: Any) -> Any:
        """InitProducerId; unless it fails, its response is this producer's new identity."""
        return self.receive_init(self.send_init(**values))

    def send_init(self, **values: Any) -> int:
        """Version 6 has two-phase commit; released brokers hide it."""
        self._init_version = 6 if "enable2_pc" in values else 5
        fields = {"transactional_id": "x", "transaction_timeout": milliseconds(TIMEOUT_MS), **values}
        return self.client.send("init_producer_id", self._init_version, **fields)

    def receive_init(self, correlation_id: int) -> Any:
        answer = self.client.receive("init_producer_id", self._init_version, correlation_id)
        if answer.error_code == 0:
            self.become(answer)
        return answer

    def become(self, answer: Any) -> None:
        """Take the identity for the next transaction, with sequences from 0 again where it is a new one."""
        if answer.producer_id != -1:
            self.producer = SimpleNamespace(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)
            self._sequences = Counter[int]()

    def add(self, partition: int = 0) -> int:
        """AddPartitionsToTxn, as old clients send it."""
        parts = request_parts("add_partitions_to_txn", 3)
        answer = self.client.call(
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.producer_epoch,
            v3_and_below_topics=(parts.AddPartitionsToTxnTopic(name="t", partitions=(partition,)),),
        )
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def write(self, partition: int = 0) -> int:
        """Write one record, after adding its partition if that is the client's task; return the Produce's error."""
        if not self.new:
            assert self.add(partition) == 0
        return self.produce(partition)

    def produce(self, partition: int = 0, *, sequence: int | None = None) -> int:
        """One record of the next sequence number."""
        row = self.receive_produce(self.send_produce(partition, sequence=sequence))
        return int(row.error_code)

    def send_produce(self, partition: int = 0, *, sequence: int | None = None) -> int:
        batch = batch_of(self.producer, b"v", sequence=self._sequences[partition] if sequence is None else sequence)
        self._sequences[partition] += sequence is None
        version = 12 if self.new else 11
        return self.client.send("produce", version, **produce_fields(version, "t", batch, "x", partition))

    def receive_produce(self, correlation_id: int) -> Any:
        response = self.client.receive("produce", 12 if self.new else 11, correlation_id)
        return response.responses[0].partition_responses[0]

    def end(self, *, commit: bool) -> int:
        """EndTxn; return the error, or adopt the identity for the next transaction."""
        return self.receive_end(self.send_end(commit=commit))

    def send_end(self, *, commit: bool) -> int:
        return self.client.send(
            "end_txn",
            5 if self.new else 4,
            transactional_id="x",
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            committed=commit,
        )

    def receive_end(self, correlation_id: int) -> int:
        answer = self.client.receive("end_txn", 5 if self.new else 4, correlation_id)
        if answer.error_code == 0 and self.new:
            self.become(answer)
        return int(answer.error_code)


def committed_read(client: RawClient, partition: int = 0) -> tuple[int, list[int]]:
    """Last stable offset, and the first offsets of aborted transactions, as a read_committed consumer gets them."""
    parts = request_parts("fetch", 12)
    asked = parts.FetchPartition(
        partition=partition, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=-1
    )
    response = client.call(
        "fetch",
        12,
        replica_id=-1,
        max_wait=milliseconds(0),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=0,
        session_epoch=-1,
        topics=(parts.FetchTopic(topic="t", partitions=(asked,)),),
        forgotten_topics_data=(),
        rack_id="",
    )
    row = response.responses[0].partitions[0]
    return row.last_stable_offset, [aborted.first_offset for aborted in row.aborted_transactions]


def described_producer(client: RawClient, partition: int = 0) -> Any:
    """The only producer that DescribeProducers shows on the partition."""
    parts = request_parts("describe_producers", 0)
    topics = (parts.TopicRequest(name="t", partition_indexes=(partition,)),)
    response = client.call("describe_producers", 0, topics=topics)
    (producer,) = response.topics[0].partitions[0].active_producers
    return producer
