"""Batches for the tests: from the broker's own builder, and from two independent ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.record_batch import build_batch

KeyValue = tuple[bytes | None, bytes | None]
NOW_MS = 1_700_000_000_000


def _own(records: Sequence[KeyValue], **fields: Any) -> bytes:
    return build_batch(records, timestamp_ms=NOW_MS, **fields)


def _foreign(builder_class: Any, records: Sequence[KeyValue], **fields: Any) -> bytes:
    builder = builder_class(
        magic=2,
        compression_type=fields.get("compression", 0),
        is_transactional=fields.get("transactional", False),
        producer_id=fields.get("producer_id", -1),
        producer_epoch=fields.get("producer_epoch", -1),
        base_sequence=fields.get("base_sequence", -1),
        batch_size=10_000_000,
    )
    for index, (key, value) in enumerate(records):
        builder.append(index, NOW_MS, key, value, headers=[])
    return bytes(builder.build())


def _aiokafka(records: Sequence[KeyValue], **fields: Any) -> bytes:
    return _foreign(AiokafkaBuilder, records, **fields)


def _kafka_python(records: Sequence[KeyValue], **fields: Any) -> bytes:
    return _foreign(KafkaPythonBuilder, records, **fields)


def timed(*timestamps: int, compression: int = 0) -> bytes:
    """Build one batch with a record of each of these timestamps."""
    builder = AiokafkaBuilder(2, compression, False, -1, -1, -1, 100_000)
    for index, timestamp_ms in enumerate(timestamps):
        builder.append(index, timestamp_ms, None, b"v", headers=[])
    return bytes(builder.build())


WRITERS: dict[str, Callable[..., bytes]] = {"own": _own, "aiokafka": _aiokafka, "kafka-python": _kafka_python}


def batch(
    *values: bytes,
    writer: str = "aiokafka",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """Build one batch with a record per value (one record `v` if no value is given)."""
    return WRITERS[writer](
        [(None, value) for value in values or (b"v",)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )


def end_transaction(log: PartitionLog, *, commit: bool, producer_id: int = 7, producer_epoch: int = 1) -> None:
    """End a transaction of version 2 by its marker."""
    error = log.append_marker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=0,
        commit=commit,
        transaction_version=2,
        now_ms=NOW_MS,
    )
    assert error is ErrorCode.none


class ReadRecord(NamedTuple):
    """A record as kafka-python reads it, with the fields of its batch."""

    offset: int
    value: bytes | None
    key: bytes | None
    producer_id: int
    is_transactional: bool
    is_control: bool


def foreign_batches(records: bytes) -> Iterator[Any]:
    """Read every batch with kafka-python, with its CRC checked."""
    batches: Any = MemoryRecords(records)
    while (current := batches.next_batch()) is not None:
        assert current.validate_crc()
        yield current


def read_records(records: bytes) -> list[ReadRecord]:
    """Return every record of a Fetch response, read and CRC-checked by kafka-python."""
    found: list[ReadRecord] = []
    for current in foreign_batches(records):
        facts = current.producer_id, current.is_transactional, current.is_control_batch
        found.extend(ReadRecord(record.offset, record.value, record.key, *facts) for record in current)
    return found


def read_committed_rule(records: bytes, aborted: Sequence[tuple[int, int]], position: int) -> list[tuple[int, bytes]]:
    """Return the records that a consumer takes from a read_committed Fetch response from `position` on."""
    waiting = sorted(aborted, key=lambda row: row[1])
    aborted_producers: set[int] = set()
    delivered: list[tuple[int, bytes]] = []
    for record in read_records(records):
        while waiting and waiting[0][1] <= record.offset:
            aborted_producers.add(waiting.pop(0)[0])
        if record.is_control:
            if record.key is not None and record.key[:4] == b"\x00\x00\x00\x00":
                aborted_producers.discard(record.producer_id)
            continue
        if record.is_transactional and record.producer_id in aborted_producers:
            continue
        if record.offset >= position:
            delivered.append((record.offset, record.value or b""))
    return delivered
