"""What is in the logs after a sequence, as far as it is the sequence's, and comparable between brokers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from dualwrite.broker_emulator.log.record_batch import (
    BatchHeader,
    iter_records,
    split_batches,
)
from dualwrite.broker_emulator.transactions.transaction_log import partition_for
from tests.differential.side import Side
from tests.differential.steps import GROUPS, IDS, TOPICS
from tests.emulator.api.raw_client import fetch_fields, request_parts
from tests.interop.raw_wire.test_transaction_log import decode

TRANSACTIONS: Final = "__transaction_state"
OFFSETS: Final = "__consumer_offsets"
INTERNAL_PARTITIONS: Final = 5
_OLDEST_KEY_OF_CONSUMER_GROUPS: Final = 3
Ends = dict[tuple[str, int], int]


def ends_of(side: Side) -> Ends:
    """Return where the internal partitions end."""
    return {
        (topic, index): _end(side, topic, index)
        for topic in (TRANSACTIONS, OFFSETS)
        for index in range(INTERNAL_PARTITIONS)
    }


def logs_of(side: Side, starts: Ends) -> dict[str, list[Any]]:
    """Return everything that the sequence left: in its partitions, and in the internal topics since `starts`."""
    symbols, logs = side.symbols, {}
    for letter, count in TOPICS.items():
        for index in range(count):
            name = symbols.topic(letter)
            logs[f"{letter}-{index}"] = [symbols.batch(*each) for each in _batches(side, name, index, 0)]
    for letter in IDS:
        logs[f"transactions of {letter}"] = list(_transactions(side, letter, starts))
    for letter in GROUPS:
        logs[f"offsets of {letter}"] = list(_offsets(side, letter, starts))
    return logs


def _transactions(side: Side, letter: str, starts: Ends) -> Iterator[Any]:
    name = str(side.symbols.id(letter)).encode()
    wanted = struct.pack(">hh", 0, len(name)) + name
    index = partition_for(name.decode(), INTERNAL_PARTITIONS)
    for _, batch in _batches(side, TRANSACTIONS, index, starts[TRANSACTIONS, index]):
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


def _offsets(side: Side, letter: str, starts: Ends) -> Iterator[Any]:
    symbols = side.symbols
    name = symbols.group(letter).encode()
    index = partition_for(name.decode(), INTERNAL_PARTITIONS)
    for header, batch in _batches(side, OFFSETS, index, starts[OFFSETS, index]):
        for record in iter_records(batch):
            key = record.key or b""
            if name not in key or int.from_bytes(key[:2]) >= _OLDEST_KEY_OF_CONSUMER_GROUPS:
                continue
            value = None if record.value is None else symbols.bytes(record.value)
            yield symbols.producer(header.producer_id), header.producer_epoch, symbols.bytes(key), value


def _batches(side: Side, topic: str, index: int, offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    end = _end(side, topic, index)
    offset = max(offset, _end(side, topic, index, timestamp=-2))
    while offset < end:
        fields = fetch_fields(11, topic, offset, isolation_level=0)
        parts = request_parts("fetch", 11)
        partition = parts.FetchPartition(
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
            current_leader_epoch=-1,
        )
        fields["topics"] = (parts.FetchTopic(topic=topic, partitions=(partition,)),)
        response = side.client.call("fetch", 11, **fields)
        read = response.responses[0].partitions[0]
        assert read.error_code == 0, read
        for header, batch in split_batches(read.records or b""):
            offset = header.last_offset + 1
            yield header, batch


def _end(side: Side, topic: str, index: int, timestamp: int = -1) -> int:
    parts = request_parts("list_offsets", 5)
    partition = parts.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=timestamp)
    topics = (parts.ListOffsetsTopic(name=topic, partitions=(partition,)),)
    response = side.client.call("list_offsets", 5, replica_id=-1, isolation_level=0, topics=topics)
    return int(response.topics[0].partitions[0].offset)
