"""The records of a partition, read from its bytes: batches of format v2 are parsed here, without a client library.

The broker is asked over the raw connection, and only the checksum, the codecs and the aborted index of its response are
needed besides the bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import crc32c

from .wire import READ_COMMITTED, READ_UNCOMMITTED, Wire

cramjam: Any = import_module("cramjam")

CODECS: Final[tuple[str, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")
"""Codecs by their numbers in a batch's attributes."""

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BYTES_BEFORE_CRC_COVERAGE: Final = 21
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """One record in the log, with the attributes of its batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    codec: str
    producer_id: int
    is_transactional: bool
    is_control: bool


def records_of(wire: Wire, topic: str, partition: int = 0) -> list[LoggedRecord]:
    """Everything in the partition, with control records."""
    return list(_read(wire, topic, partition))


def values_of(wire: Wire, topic: str, partition: int = 0) -> list[bytes]:
    """The values of all records, aborted ones included."""
    return [record.value or b"" for record in _read(wire, topic, partition) if not record.is_control]


def committed_values_of(wire: Wire, topic: str, partition: int = 0) -> list[bytes]:
    """The values for `read_committed`: below the last stable offset, and of no aborted transaction."""
    end = wire.list_offsets(topic, isolation=READ_COMMITTED, partition=partition)
    aborted = {(record.producer_id, record.offset) for record in _aborted(wire, topic, partition)}
    return [
        record.value or b""
        for record in _read(wire, topic, partition)
        if not record.is_control and record.offset < end and (record.producer_id, record.offset) not in aborted
    ]


def _aborted(wire: Wire, topic: str, partition: int) -> Iterator[LoggedRecord]:
    """Records that an abort marker of their producer follows before a commit marker does."""
    pending: dict[int, list[LoggedRecord]] = {}
    for record in _read(wire, topic, partition):
        if not record.is_transactional:
            continue
        if not record.is_control:
            pending.setdefault(record.producer_id, []).append(record)
            continue
        _, kind = struct.unpack(">hh", record.key or b"")
        ended = pending.pop(record.producer_id, [])
        if kind == 0:
            yield from ended


def _read(wire: Wire, topic: str, partition: int) -> Iterator[LoggedRecord]:
    (offset,) = (wire.list_offsets(topic, timestamp=-2, partition=partition),)
    end = wire.list_offsets(topic, partition=partition)
    while offset < end:
        data = wire.fetch_bytes(topic, offset, READ_UNCOMMITTED, partition=partition, max_bytes=8 << 20)
        before = offset
        for batch, next_offset in _batches(data):
            for record in batch:
                if record.offset >= offset:
                    yield record
            offset = max(offset, next_offset)
        assert offset > before, f"nothing at offset {offset} of {topic}-{partition}, which ends at {end}"


def _batches(data: bytes) -> Iterator[tuple[list[LoggedRecord], int]]:
    """The whole batches in `data`, each with the offset after it; the last may be cut off."""
    position = 0
    while position + _HEADER.size <= len(data):
        (base, length, _, magic, checksum, attributes, last_delta, first_ms, max_ms, producer, _, _, count) = (
            _HEADER.unpack_from(data, position)
        )
        end = position + 12 + length
        if end > len(data):
            return
        assert magic == 2
        assert checksum == crc32c.crc32c(data[position + _BYTES_BEFORE_CRC_COVERAGE : end])
        codec = CODECS[attributes & 7]
        appended_ms = max_ms if attributes & 8 else None
        body = _decompressed(codec, data[position + _HEADER.size : end])
        records = []
        reader = _Reader(body)
        for _ in range(count):
            delta_ms, delta, key, value, headers = reader.record()
            records.append(
                LoggedRecord(
                    offset=base + delta,
                    timestamp_ms=first_ms + delta_ms if appended_ms is None else appended_ms,
                    key=key,
                    value=value,
                    headers=headers,
                    codec=codec,
                    producer_id=producer,
                    is_transactional=bool(attributes & _TRANSACTIONAL),
                    is_control=bool(attributes & _CONTROL),
                )
            )
        yield records, base + last_delta + 1
        position = end


def _decompressed(codec: str, data: bytes) -> bytes:
    if codec == "none":
        return data
    if codec == "gzip":
        return zlib.decompress(data, wbits=31)
    if codec == "snappy":
        return _from_snappy(data)
    return bytes(getattr(cramjam, codec).decompress(data))


def _from_snappy(data: bytes) -> bytes:
    """Java's clients frame their blocks, others write one."""
    if not data.startswith(_XERIAL):
        return bytes(cramjam.snappy.decompress_raw(data))
    blocks, position = [], _XERIAL_HEADER_BYTES
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        blocks.append(bytes(cramjam.snappy.decompress_raw(data[position + 4 : position + 4 + length])))
        position += 4 + length
    return b"".join(blocks)


class _Reader:
    """Records of format v2: zigzag varints and lengths."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def record(self) -> tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
        self._varint()  # its length
        self._position += 1  # attributes, all unused
        delta_ms, delta = self._varint(), self._varint()
        key, value = self._bytes(), self._bytes()
        headers = tuple(((self._bytes() or b"").decode(), self._bytes()) for _ in range(self._varint()))
        return delta_ms, delta, key, value, headers

    def _bytes(self) -> bytes | None:
        length = self._varint()
        if length < 0:
            return None
        self._position += length
        return self._data[self._position - length : self._position]

    def _varint(self) -> int:
        result = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)
            shift += 7
