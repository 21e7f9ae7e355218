"""A sequence's records in the logs, in a form that can be compared between brokers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from dualwrite.broker_emulator.groups.records import decode_group_key, decode_group_value
from dualwrite.broker_emulator.log.record_batch import BatchHeader, iter_records, split_batches
from dualwrite.broker_emulator.transactions.transaction_log import partition_for
from tests.differential.side import Side
from tests.differential.steps import GROUPS, IDS, TOPICS
from tests.differential.symbols import in_order
from tests.emulator.api.raw_client import fetch_fields
from tests.interop.raw_wire.test_transaction_log import decode

TRANSACTIONS: Final = "__transaction_state"
OFFSETS: Final = "__consumer_offsets"
INTERNAL_PARTITIONS: Final = 5
_OLDEST_KEY_OF_CONSUMER_GROUPS: Final = 3
Partition = tuple[str, int]
Batch = tuple[BatchHeader, memoryview]
Offsets = dict[Partition, int]
_EARLIEST: Final = -2
_LATEST: Final = -1
_INTERNAL: Final = tuple((topic, index) for topic in (TRANSACTIONS, OFFSETS) for index in range(INTERNAL_PARTITIONS))


def ends_of(side: Side) -> Offsets:
    """Return where the internal partitions end."""
    return _offsets_of(side, _INTERNAL, _LATEST)


def logs_of(side: Side, starts: Offsets) -> dict[str, list[Any]]:
    """Return all records of the sequence: in its partitions, and in the internal topics since `starts`."""
    own = {(side.symbols.topic(letter), index): letter for letter, count in TOPICS.items() for index in range(count)}
    starts = {**starts, **_offsets_of(side, tuple(own), _EARLIEST)}
    ends = _offsets_of(side, tuple(starts), _LATEST)
    read = {partition: list(_batches(side, partition, start, ends[partition])) for partition, start in starts.items()}
    logs = {
        f"{letter}-{partition[1]}": [side.symbols.batch(*each) for each in read[partition]]
        for partition, letter in own.items()
    }
    for letter in IDS:
        name = str(side.symbols.id(letter))
        found = read[TRANSACTIONS, partition_for(name, INTERNAL_PARTITIONS)]
        logs[f"transactions of {letter}"] = list(_transactions(side, name.encode(), found))
    for letter in GROUPS:
        name = side.symbols.group(letter)
        found = read[OFFSETS, partition_for(name, INTERNAL_PARTITIONS)]
        logs[f"offsets of {letter}"] = _ordered(_offsets(side, name.encode(), found))
    return logs


def _transactions(side: Side, name: bytes, batches: list[Batch]) -> Iterator[Any]:
    wanted = struct.pack(">hh", 0, len(name)) + name
    for _, batch in batches:
        for record in iter_records(batch):
            if record.key == wanted:
                yield None if record.value is None else _transaction(side, record.value)


def _transaction(side: Side, value: bytes) -> Any:
    (version,) = struct.unpack_from(">h", value)
    if version == 0:
        producer_id, epoch, timeout_ms, state = struct.unpack_from(">qhib", value, 2)
        return version, side.symbols.producer(producer_id), epoch, timeout_ms, state, len(value)
    entry = decode(value)
    producer = side.symbols.producer(entry.identity.producer_id)
    partitions = {side.symbols.text(topic): found for topic, found in sorted((entry.partitions or {}).items())}
    rest = (entry.timeout_ms, entry.started, entry.changed_producer_id, entry.client_transaction_version)
    return version, producer, entry.identity.producer_epoch, entry.state, partitions, rest


def _offsets(side: Side, name: bytes, batches: list[Batch]) -> Iterator[Any]:
    symbols = side.symbols
    for header, batch in batches:
        for record in iter_records(batch):
            key = record.key or b""
            if name not in key or int.from_bytes(key[:2]) >= _OLDEST_KEY_OF_CONSUMER_GROUPS:
                continue
            value = None if record.value is None else symbols.bytes(_in_order(key, record.value))
            yield symbols.producer(header.producer_id), header.producer_epoch, symbols.bytes(key), value


def _in_order(key: bytes, value: bytes) -> bytes:
    """Return a record of a classic group with the topics of its assignments in order."""
    group_id = decode_group_key(key)
    if group_id is None:
        return value
    for member in decode_group_value(group_id, value).members.values():
        value = value.replace(member.assignment, in_order(member.assignment)) if member.assignment else value
    return value


def _ordered(rows: Iterator[Any]) -> list[Any]:
    """Return rows with each run of tombstones in order: Kafka's is that of a hash table."""
    ordered: list[Any] = []
    for is_tombstone, run in groupby(rows, lambda row: row[-1] is None):
        found = list(run)
        ordered += sorted(found) if is_tombstone else found
    return ordered


def _batches(side: Side, partition: Partition, offset: int, end: int) -> Iterator[Batch]:
    topic, index = partition
    while offset < end:
        fields = fetch_fields(11, topic, offset, isolation_level=0, partition=index)
        read = side.client.call("fetch", 11, **fields).responses[0].partitions[0]
        assert read.error_code == 0, read
        for header, batch in split_batches(read.records or b""):
            offset = header.last_offset + 1
            yield header, batch


def _offsets_of(side: Side, partitions: tuple[Partition, ...], timestamp: int) -> Offsets:
    topics = tuple(
        {
            "name": topic,
            "partitions": tuple(
                {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
                for name, index in partitions
                if name == topic
            ),
        }
        for topic in dict.fromkeys(topic for topic, _ in partitions)
    )
    response = side.client.call("list_offsets", 5, replica_id=-1, isolation_level=0, topics=topics)
    return {(topic.name, row.partition_index): row.offset for topic in response.topics for row in topic.partitions}
