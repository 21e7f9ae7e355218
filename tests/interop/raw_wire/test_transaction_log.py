"""The coordinators' records in `__transaction_state`, the same on both brokers: record formats, states and their order.

Read by an ordinary fetch. Only the tags that a release writes are compared: the emulator also writes the tag of the
last producer epoch (KAFKA-20357), which no release has yet. As the previous producer id, releases write the entry's own
id where KIP-939 writes none; both mean that the id did not change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.interop.conftest import Broker
from tests.interop.wire import Code, Identity, Wire, wait_for

TOPIC = "__transaction_state"
PARTITIONS = 5
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
PREVIOUS_PRODUCER_ID, NEXT_PRODUCER_ID, CLIENT_TRANSACTION_VERSION = range(3)
COMPARED_TAGS = {PREVIOUS_PRODUCER_ID: ">q", NEXT_PRODUCER_ID: ">q", CLIENT_TRANSACTION_VERSION: ">h"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of the log, without its timestamps."""

    state: int
    identity: Identity
    timeout_ms: int
    partitions: dict[str, list[int]] | None
    started: bool
    changed_producer_id: bool
    client_transaction_version: int


class _Reader:
    """Kafka's flexible encoding, as far as this one schema (TransactionLogValue v1) uses it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._data, self._position)
        self._position += struct.calcsize(layout)
        return int(value)

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(">B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def raw(self, length: int) -> bytes:
        self._position += length
        return self._data[self._position - length : self._position]

    def tags(self) -> dict[int, bytes]:
        return {self.uvarint(): self.raw(self.uvarint()) for _ in range(self.uvarint())}

    def partitions(self) -> dict[str, list[int]] | None:
        count = self.uvarint()
        if count == 0:
            return None
        topics = {}
        for _ in range(count - 1):
            name = self.raw(self.uvarint() - 1).decode()
            topics[name] = sorted(self.take(">i") for _ in range(self.uvarint() - 1))
            assert self.tags() == {}
        return topics

    def finish(self) -> None:
        assert self._position == len(self._data)


def decode(value: bytes) -> Entry:
    reader = _Reader(value)
    assert reader.take(">h") == 1
    identity = Identity(reader.take(">q"), reader.take(">h"))
    timeout_ms, state, partitions = reader.take(">i"), reader.take(">b"), reader.partitions()
    last_update_ms, start_ms = reader.take(">q"), reader.take(">q")
    assert last_update_ms > 0
    tags = {
        tag: struct.unpack(COMPARED_TAGS[tag], data)[0] for tag, data in reader.tags().items() if tag in COMPARED_TAGS
    }
    reader.finish()
    return Entry(
        state=state,
        identity=identity,
        timeout_ms=timeout_ms,
        partitions=partitions,
        started=start_ms >= 0,
        changed_producer_id=tags.get(PREVIOUS_PRODUCER_ID, -1) not in (-1, identity.producer_id),
        client_transaction_version=tags.get(CLIENT_TRANSACTION_VERSION, 0),
    )


class TransactionLog:
    """The partitions of `__transaction_state`, from their present ends on."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._starts = [wire.list_offsets(TOPIC, partition=partition) for partition in range(PARTITIONS)]

    def history(self, transactional_id: str) -> list[Entry]:
        """Every entry of this id, from whichever partition has it."""
        return [decode(value) for partition in range(PARTITIONS) for value in self.values(transactional_id, partition)]

    def values(self, transactional_id: str, partition: int) -> list[bytes]:
        raw_id = transactional_id.encode()
        wanted = struct.pack(">hh", 0, len(raw_id)) + raw_id
        return [value for key, value in self._records(partition) if key == wanted and value is not None]

    def _records(self, partition: int) -> Iterator[tuple[bytes | None, bytes | None]]:
        offset, end = self._starts[partition], self._wire.list_offsets(TOPIC, partition=partition)
        while offset < end:
            read = self._wire.fetch(TOPIC, offset, partition=partition)
            assert read.error == Code.NONE
            for batch in read.batches:
                yield from zip(batch.keys, batch.values, strict=True)
                offset = batch.next_offset


@pytest.fixture
def log(wire: Wire) -> TransactionLog:
    return TransactionLog(wire)


@pytest.mark.parametrize(
    ("vector", "partition"),
    [
        ("my-transactional-id", 1),
        ("kafka-sink-0-1", 0),
        ("polygenelubricants", 0),  # its Java hash has no absolute value
        ("été", 2),
        ("\N{GRINNING FACE}", 4),  # two UTF-16 units
    ],
)
def test_partition_of_a_transactional_id(wire: Wire, log: TransactionLog, vector: str, partition: int) -> None:
    wire.init_ok(vector)
    found = [candidate for candidate in range(PARTITIONS) if log.values(vector, candidate)]
    assert found == [partition]


def test_two_transactions(wire: Wire, log: TransactionLog, transactional_id: str, topic: str) -> None:
    first = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, first, topic, 0).error == Code.NONE
    second = wire.end_settled(transactional_id, first, commit=True).identity
    assert wire.produce(transactional_id, second, topic, 0).error == Code.NONE
    third = wire.end_settled(transactional_id, second, commit=False).identity

    added = {topic: [0]}
    assert log.history(transactional_id) == [
        Entry(EMPTY, first, 60_000, None, False, False, 0),
        Entry(ONGOING, first, 60_000, added, True, False, 2),
        Entry(PREPARE_COMMIT, second, 60_000, added, True, False, 2),
        Entry(COMPLETE_COMMIT, second, 60_000, {}, True, False, 2),
        Entry(ONGOING, second, 60_000, added, True, False, 2),
        Entry(PREPARE_ABORT, third, 60_000, added, True, False, 2),
        Entry(COMPLETE_ABORT, third, 60_000, {}, True, False, 2),
    ]


def test_old_client(wire: Wire, log: TransactionLog, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    assert wire.add(transactional_id, identity, (topic, 0)) == [Code.NONE]
    assert wire.end_settled(transactional_id, identity, commit=True, version=4).error == Code.NONE
    added = {topic: [0]}
    assert log.history(transactional_id) == [
        Entry(EMPTY, identity, 60_000, None, False, False, 0),
        Entry(ONGOING, identity, 60_000, added, True, False, 0),
        Entry(PREPARE_COMMIT, identity, 60_000, added, True, False, 0),
        Entry(COMPLETE_COMMIT, identity, 60_000, {}, True, False, 0),
    ]


def test_initialisations_and_an_empty_abort(wire: Wire, log: TransactionLog, transactional_id: str) -> None:
    first = wire.init_ok(transactional_id, timeout_ms=5_000)
    second = wire.init_ok(transactional_id, first, version=6, enable_2pc=True)
    third = wire.end_settled(transactional_id, second, commit=False).identity
    assert log.history(transactional_id) == [
        Entry(EMPTY, first, 5_000, None, False, False, 0),
        Entry(EMPTY, second, 2147483647, None, False, False, 0),
        Entry(PREPARE_ABORT, third, 2147483647, {}, True, False, 2),
        Entry(COMPLETE_ABORT, third, 2147483647, {}, True, False, 2),
    ]


def test_timeout(wire: Wire, log: TransactionLog, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id, timeout_ms=1)
    assert wire.produce(transactional_id, identity, topic, 0).error == Code.NONE
    wait_for(lambda: wire.describe(transactional_id), lambda described: described.state == "CompleteAbort")
    added = {topic: [0]}
    assert log.history(transactional_id) == [
        Entry(EMPTY, identity, 1, None, False, False, 0),
        Entry(ONGOING, identity, 1, added, True, False, 2),
        Entry(PREPARE_ABORT, identity.bumped(), 1, added, True, False, 2),
        Entry(COMPLETE_ABORT, identity.bumped(), 1, {}, True, False, 2),
    ]


def tags_of(value: bytes) -> dict[int, int]:
    reader = _Reader(value)
    for layout in (">h", ">q", ">h", ">i", ">b"):
        reader.take(layout)
    reader.partitions()
    reader.take(">q")
    reader.take(">q")
    return {tag: int.from_bytes(data, "big", signed=True) for tag, data in reader.tags().items()}


def test_tags_of_releases(released_kafka: Broker, transactional_id: str) -> None:
    """Every tag that a release writes, its own producer id as the previous one included."""
    topic = f"{transactional_id}-topic"
    with Wire(released_kafka.bootstrap_servers) as wire:
        wire.create_topic(topic)
        wire.wait_for_coordinator(transactional_id)
        log = TransactionLog(wire)
        last = released_kafka.exhaust_epochs(wire, transactional_id)
        assert wire.produce(transactional_id, last, topic, 0).error == Code.NONE
        fresh = wire.end_settled(transactional_id, last, commit=True).identity
        assert wire.produce(transactional_id, fresh, topic, 0).error == Code.NONE
        following = wire.end_settled(transactional_id, fresh, commit=False).identity
        wire.init_ok(transactional_id, following)
        values = [value for index in range(PARTITIONS) for value in log.values(transactional_id, index)][-8:]
    old, new = last.producer_id, fresh.producer_id
    assert [tags_of(value) for value in values] == [
        {PREVIOUS_PRODUCER_ID: old},
        {PREVIOUS_PRODUCER_ID: old, CLIENT_TRANSACTION_VERSION: 2},
        {PREVIOUS_PRODUCER_ID: old, NEXT_PRODUCER_ID: new, CLIENT_TRANSACTION_VERSION: 2},
        {PREVIOUS_PRODUCER_ID: old, CLIENT_TRANSACTION_VERSION: 2},
        *[{PREVIOUS_PRODUCER_ID: new, CLIENT_TRANSACTION_VERSION: 2}] * 4,
    ]
