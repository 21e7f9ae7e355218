"""Record batches as brokers store them, of any producer: their headers, and their records byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from dualwrite.client.records.batches import (
    HEADER,
    HEADER_BYTES,
    LENGTH_COUNTS_FROM,
    TRANSACTIONAL,
    Header,
    is_intact,
)
from dualwrite.client.records.compression import decompressed
from dualwrite.errors import AdminError, ConfigError, RetriableError

_MAGIC: Final = 2
_MAGIC_OFFSET: Final = 16
_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_COMPRESSION: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_CONTROL: Final = 0x20
_CONTROL_KEY: Final = struct.Struct(">hh")  # version, type


class StoredRecord(NamedTuple):
    """A record as it is stored; `timestamp_ms` is milliseconds since 1970, the broker's if the topic says so."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp_ms: int
    offset: int


class Marker(Enum):
    """The end of a transaction in a partition, by the type of its control record."""

    ABORT = 0
    COMMIT = 1


class StoredBatch(NamedTuple):
    """The header of a batch, and all its bytes. After compaction it may have fewer records than offsets, or none."""

    base_offset: int
    last_offset: int
    attributes: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    record_count: int
    data: memoryview

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it is the broker's: a marker, for example."""
        return bool(self.attributes & _CONTROL)

    @property
    def has_broker_time(self) -> bool:
        """Whether its timestamp is the broker's (`message.timestamp.type=LogAppendTime`), and not the producer's."""
        return bool(self.attributes & _LOG_APPEND_TIME)


_MARKERS: Final = {marker.value: marker for marker in Marker}


def batches_in(stored: memoryview) -> Iterator[StoredBatch]:
    """Yield the whole batches of a Fetch response; its last one may be cut off.

    A message from before Kafka 0.11 is a batch of no producer, with one offset: it belongs to no transaction.
    """
    position = 0
    while position + HEADER_BYTES <= len(stored):
        offset, length = _OFFSET_AND_LENGTH.unpack_from(stored, position)
        end = position + LENGTH_COUNTS_FROM + length
        if end > len(stored):
            return
        if stored[position + _MAGIC_OFFSET] < _MAGIC:
            yield StoredBatch(offset, offset, 0, -1, -1, -1, -1, 0, stored[position:end])
        else:
            yield _batch(stored[position:end])
        position = end


def _batch(data: memoryview) -> StoredBatch:
    base, _, _, _, _, attributes, delta, first_ms, max_ms, producer_id, epoch, _, count = HEADER.unpack_from(data)
    return StoredBatch(base, base + delta, attributes, first_ms, max_ms, producer_id, epoch, count, data)


def marker_of(topic: str, partition: int, batch: StoredBatch) -> Marker | None:
    """Return how a batch ends its producer's transaction; None if it does not. Raises as `records_of`."""
    if not (batch.is_control and batch.is_transactional and batch.record_count):
        return None
    key = records_of(topic, partition, batch)[0].key
    if key is None:
        return None
    _, kind = _CONTROL_KEY.unpack_from(key)
    return _MARKERS.get(kind)


def records_of(topic: str, partition: int, batch: StoredBatch) -> list[StoredRecord]:
    """Return the records of a batch.

    Raises `RetriableError` if its checksum is wrong, `ConfigError` if no library is installed that decompresses it, and
    `AdminError` for bytes that are not Kafka's.
    """
    if not is_intact(batch.data):
        raise RetriableError(
            f"the batch at offset {batch.base_offset} of {topic}-{partition} arrived damaged (its checksum is wrong); "
            "nothing was changed: repeat the call; if it fails again, check the broker's disk"
        )
    try:
        return list(_records(topic, partition, batch))
    except ConfigError:
        raise
    except Exception as error:  # a codec may raise anything for bytes that are not Kafka's
        raise AdminError(
            f"the batch at offset {batch.base_offset} of {topic}-{partition} cannot be decoded ({error!r}); "
            "nothing was changed"
        ) from error


def _records(topic: str, partition: int, batch: StoredBatch) -> Iterator[StoredRecord]:
    stored = decompressed(batch.attributes & _COMPRESSION, batch.data[HEADER_BYTES:])
    position = 0
    for _ in range(batch.record_count):
        length, position = _varint(stored, position)
        end = position + length
        if end > len(stored):
            raise ValueError(f"a record has {length} bytes, and {len(stored) - position} are left")
        position += 1  # the attributes of a record, which are not used
        time_delta_ms, position = _varint(stored, position)
        offset_delta, position = _varint(stored, position)
        key, position = _nullable(stored, position)
        value, position = _nullable(stored, position)
        count, position = _varint(stored, position)
        headers: list[Header] = []
        for _ in range(count):
            name, position = _nullable(stored, position)
            header, position = _nullable(stored, position)
            headers.append(((name or b"").decode(), header))
        if position != end:
            raise ValueError(f"a record at offset {batch.base_offset + offset_delta} has {end - position} bytes more")
        timestamp_ms = batch.max_timestamp_ms if batch.has_broker_time else batch.first_timestamp_ms + time_delta_ms
        yield StoredRecord(topic, partition, key, value, headers, timestamp_ms, batch.base_offset + offset_delta)


def _varint(stored: memoryview, position: int) -> tuple[int, int]:
    """Return a zigzag varint, and the position behind it."""
    byte = stored[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    number, shift = byte & 0x7F, 7
    while True:
        byte = stored[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
        shift += 7


def _nullable(stored: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(stored, position)
    if length < 0:
        return None, position
    return bytes(stored[position : position + length]), position + length
