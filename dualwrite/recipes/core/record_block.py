"""The records of one block as bytes, to be stored in the database: written once, and read when they are published.

The format is this library's own. It begins with a version, because a later version of the library may read the blocks,
and ends with a checksum, which alone shows that a column has truncated or recoded them.

A block is written without Kafka, so the number of a topic's partitions is not known then. The block names its
partitioner, which chooses among the topic's partitions when the block is published, in whichever process: as if the
process that wrote the records had sent them at that moment.
"""

from __future__ import annotations

import os
import random
import struct
import time
import zlib
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from dualwrite.partitioners import Partitioner, Partitioning, partitioning_named
from dualwrite.recipes.core.buffer import BufferedRecord

_VERSION: Final = 2
_CHECKSUM_BYTES: Final = 4
_HEAD: Final = struct.Struct(">BQHI")
"""The version, the token, the length of the partitioner's name, and the number of records."""

_TOKEN: Final = slice(1, 9)
_RECORD: Final = struct.Struct(">HiqiiI")
"""The length of the topic, the partition, the timestamp, the lengths of key and value, and the number of headers."""

_HEADER: Final = struct.Struct(">Ii")
"""The lengths of a header's name and value."""

_NONE: Final = -1
"""In place of a length or a partition."""

# Not os.urandom(), which lets another thread run, so that each block would cost a change of threads. Processes that are
# restored from one snapshot of memory (AWS Lambda SnapStart, CRIU) draw the same numbers, and differ by the time.
_tokens: Final = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tokens.seed)


class RecordBlock(NamedTuple):
    """The records of one block, and the partitioner of those that have no partition, by `partitioners.name_of`."""

    partitioner: str
    records: list[BufferedRecord]


def encode(records: Iterable[BufferedRecord], partitioner: str) -> bytes:
    """Return the records as bytes that no other call returns, so that no two blocks are equal."""
    listed, name = list(records), partitioner.encode()
    parts = [_HEAD.pack(_VERSION, _tokens.getrandbits(64) ^ time.time_ns(), len(name), len(listed)), name]
    for record in listed:
        topic, key, value, headers = record.topic.encode(), record.key, record.value, record.headers
        partition = _NONE if record.partition is None else record.partition
        key_size = _NONE if key is None else len(key)
        value_size = _NONE if value is None else len(value)
        sizes = _RECORD.pack(len(topic), partition, record.timestamp_ms, key_size, value_size, len(headers))
        parts += (sizes, topic, key or b"", value or b"")
        for header, content in headers:
            title = header.encode()
            parts += (_HEADER.pack(len(title), _NONE if content is None else len(content)), title, content or b"")
    out = b"".join(parts)
    return out + zlib.crc32(out).to_bytes(_CHECKSUM_BYTES, "big")


def token_of(block: bytes) -> str:
    """Return the part of a block's bytes that tells it from all others."""
    return block[_TOKEN].hex()


def decode(block: bytes) -> RecordBlock:
    """Return the records of a block. Raises ValueError, and nothing else, for bytes that `encode` did not make."""
    content, checksum = block[:-_CHECKSUM_BYTES], block[-_CHECKSUM_BYTES:]
    if len(content) < _HEAD.size or zlib.crc32(content) != int.from_bytes(checksum, "big"):
        raise ValueError(f"{len(block)} bytes are not a block of records: the checksum differs")
    if content[0] != _VERSION:
        raise ValueError(f"the block of records has version {content[0]}, which this version of dualwrite cannot read")
    try:
        return _unpacked(content)
    except (ValueError, struct.error) as error:
        raise ValueError(f"{len(block)} bytes are not a block of records: {error}") from error


def _unpacked(content: bytes) -> RecordBlock:
    """Return the records in the bytes before the checksum. Raises ValueError or struct.error if they are malformed."""
    _, _, size, count = _HEAD.unpack_from(content)
    at = _HEAD.size + size
    partitioner = content[_HEAD.size : at].decode()
    records: list[BufferedRecord] = []
    for _ in range(count):
        topic_size, partition, timestamp_ms, key_size, value_size, header_count = _RECORD.unpack_from(content, at)
        if partition < _NONE or key_size < _NONE or value_size < _NONE:
            raise ValueError(f"record {len(records)} has a negative partition or length")
        topic_at = at + _RECORD.size
        key_at = topic_at + topic_size
        value_at = key_at + max(key_size, 0)
        at = value_at + max(value_size, 0)
        topic = content[topic_at:key_at].decode()
        key = None if key_size == _NONE else content[key_at:value_at]
        value = None if value_size == _NONE else content[value_at:at]
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(header_count):
            title_size, size = _HEADER.unpack_from(content, at)
            if size < _NONE:
                raise ValueError(f"record {len(records)} has a header of negative length")
            title_at = at + _HEADER.size
            content_at = title_at + title_size
            at = content_at + max(size, 0)
            headers.append((content[title_at:content_at].decode(), None if size == _NONE else content[content_at:at]))
        records.append(
            BufferedRecord(topic, value, key, headers, None if partition == _NONE else partition, timestamp_ms)
        )
    if at != len(content):
        raise ValueError(f"its {count} records end at byte {at}, and not at {len(content)}")
    return RecordBlock(partitioner, records)


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
