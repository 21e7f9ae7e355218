"""The records of one block as bytes, to be stored in the database: written once, and read when they are published.

The format is this library's own. It begins with a version, because a later version of the library may read the blocks,
and ends with a checksum, which alone shows that a column has truncated or recoded them.

A block is written without Kafka, so the number of a topic's partitions is not known then. The block names its
partitioner, which chooses among the topic's partitions when the block is published, in whichever process: as if the
process that wrote the records had sent them at that moment.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from dualwrite.partitioners import Partitioner, Partitioning, partitioning_named
from dualwrite.recipes.core.buffer import BufferedRecord

_VERSION: Final = 1
_TOKEN_BYTES: Final = 8
_CHECKSUM_BYTES: Final = 4
_HEAD: Final = bytes([_VERSION])
_ABSENT: Final = b"\0"


class RecordBlock(NamedTuple):
    """The records of one block, and the partitioner of those that have no partition, by `partitioners.name_of`."""

    partitioner: str
    records: list[BufferedRecord]


def encode(records: Iterable[BufferedRecord], partitioner: str) -> bytes:
    """Return the records as bytes that no other call returns: two blocks are never taken for one."""
    listed = list(records)
    parts = [_HEAD, os.urandom(_TOKEN_BYTES), _sized(partitioner.encode()), _number(len(listed))]
    for record in listed:
        topic, key, value, headers = record.topic.encode(), record.key, record.value, record.headers
        partition = 0 if record.partition is None else record.partition + 1
        parts += (_number(len(topic) + 1), topic, _number(partition), _number(record.timestamp_ms))
        parts += (_ABSENT,) if key is None else (_number(len(key) + 1), key)
        parts += (_ABSENT,) if value is None else (_number(len(value) + 1), value)
        parts.append(_number(len(headers)))
        for name, content in headers:
            parts += (_sized(name.encode()), _ABSENT if content is None else _sized(content))
    out = b"".join(parts)
    return out + zlib.crc32(out).to_bytes(_CHECKSUM_BYTES, "big")


def token_of(block: bytes) -> str:
    """Return the part of a block's bytes that tells it from all others."""
    return block[len(_HEAD) : len(_HEAD) + _TOKEN_BYTES].hex()


def decode(block: bytes) -> RecordBlock:
    """Return the records of a block. Raises ValueError for altered bytes, or those of an unknown version."""
    content, checksum = block[:-_CHECKSUM_BYTES], block[-_CHECKSUM_BYTES:]
    if len(content) <= _TOKEN_BYTES or zlib.crc32(content) != int.from_bytes(checksum, "big"):
        raise ValueError(f"{len(block)} bytes are not a block of records: the checksum differs")
    if content[0] != _VERSION:
        raise ValueError(f"the block of records has version {content[0]}, which this version of dualwrite cannot read")
    reader = _Reader(content, 1 + _TOKEN_BYTES)
    partitioner = reader.text()
    return RecordBlock(partitioner, [reader.record() for _ in range(reader.number())])


def _sized(value: bytes) -> bytes:
    return _number(len(value) + 1) + value


@lru_cache(maxsize=1024)  # most numbers are lengths; a hit calls no Python function
def _number(number: int) -> bytes:
    """Return a number of at least 0 in groups of seven bits, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Reader:
    """Reads the bytes of `encode`, whose checksum is right."""

    def __init__(self, content: bytes, position: int) -> None:
        self._content = content
        self._position = position

    def record(self) -> BufferedRecord:
        topic = self.text()
        partition = self.number()
        timestamp_ms = self.number()
        key, value = self._bytes(), self._bytes()
        count = self.number()
        headers = [(self.text(), self._bytes()) for _ in range(count)] if count else []
        return BufferedRecord(topic, value, key, headers, partition - 1 if partition else None, timestamp_ms)

    def number(self) -> int:
        found = shift = 0
        while (byte := self._content[self._position]) & 0x80:
            found |= (byte & 0x7F) << shift
            shift += 7
            self._position += 1
        self._position += 1
        return found | byte << shift

    def _bytes(self) -> bytes | None:
        length = self._content[self._position]
        if length < 0x80:  # as most are, without a call
            self._position += 1
        else:
            length = self.number()
        if not length:
            return None
        start, self._position = self._position, self._position + length - 1
        return self._content[start : self._position]

    def text(self) -> str:
        return (self._bytes() or b"").decode()


# ---- partitions ------------------------------------------------------------------------------------------------------


class Placement:
    """Gives stored records their partitions, in a process that has the setting `partitioner`."""

    def __init__(self, setting: str | Partitioner) -> None:
        self._setting = setting
        self._by_name: dict[str, Partitioning] = {}

    def place(self, block: RecordBlock, partitions: Callable[[str], int]) -> Collection[str]:
        """Choose the partitions of a block's records; return the topics whose partitions are not known.

        If there are such topics, nothing was chosen. Raises ValueError if this process lacks the partitioner, and
        InvalidRecordError if that fails.
        """
        counts: dict[str, int] = {}
        for record in block.records:
            if record.topic not in counts:
                counts[record.topic] = partitions(record.topic)
        if 0 in counts.values():
            return [topic for topic, count in counts.items() if not count]
        chosen_by = self._named(block.partitioner)
        for record in block.records:
            if record.partition is None:
                record.partition = _chosen(chosen_by, record, counts[record.topic])
        return ()

    def _named(self, name: str) -> Partitioning:
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = partitioning_named(name, self._setting)
        return found


def _chosen(chosen_by: Partitioning, record: BufferedRecord, count: int) -> int | None:
    """Return the partition; None for a record without a key, with which the producer fills its batches (KIP-480)."""
    if chosen_by.by_record is not None:
        return chosen_by.by_record(record.topic, record.key, record.value, count)
    key = record.key
    if key is None or chosen_by.by_key is None or (not key and chosen_by.empty_key_is_none):
        return None
    return chosen_by.by_key(key, count)
