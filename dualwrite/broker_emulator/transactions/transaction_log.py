"""Keys and values of `__transaction_state`, byte for byte as Kafka writes them.

Value version 0 has fixed-width lengths and no tags; version 1 is flexible and adds the tags below (KIP-890, KIP-915,
KIP-939). Tag numbers are those of the shipped schema, which differ from KIP-939's text: KIP-890 had taken tag 2.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import mul
from typing import Any

from dualwrite.broker_emulator.log.reading import UnknownKeyVersionError
from dualwrite.broker_emulator.log.record_fields import SINGLE_BYTES, uvarint
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions.metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
)
from dualwrite.broker_emulator.transactions.states import EMPTY, PERSISTED_STATES, TransactionState

KEY_VERSION = 0

_HEAD = struct.Struct(">hqhib")  # version, producer id, producer epoch, timeout, status
_TIMES = struct.Struct(">qq")  # last update, start
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

_TAGS: tuple[tuple[str, struct.Struct, int], ...] = (  # by tag number: field, type, default (which is not written)
    ("previous_producer_id", _INT64, -1),
    ("next_producer_id", _INT64, -1),
    ("client_transaction_version", _INT16, 0),
    ("next_producer_epoch", _INT16, -1),
    ("last_producer_epoch", _INT16, -1),  # KAFKA-20357
)


class TransactionLogError(ValueError):
    """A record of `__transaction_state` that cannot be decoded."""


def _powers_of_31() -> list[int]:
    powers = [1]
    while len(powers) < 256:
        powers.append(31 * powers[-1] & 0xFFFFFFFF)
    return powers


_POWERS_OF_31 = _powers_of_31()[::-1]


@lru_cache(maxsize=4096)
def partition_for(transactional_id: str, partitions: int) -> int:
    """Return the partition of `__transaction_state` that owns an id.

    Computed from Java's hash of the id's UTF-16 units, made non-negative, modulo the number of partitions.
    """
    code = _java_hash(transactional_id)
    if code == 0x80000000:  # Kafka's abs(Integer.MIN_VALUE) is 0
        return 0
    return (code if code < 0x80000000 else 0x100000000 - code) % partitions


def _java_hash(text: str) -> int:
    """Return Java's hash as an unsigned number.

    Short ASCII texts are summed without a Python loop, because there can be too many ids to cache.
    """
    if text.isascii() and len(text) <= len(_POWERS_OF_31):
        total: int = sum(map(mul, text.encode(), _POWERS_OF_31[-len(text) :]))
        return total & 0xFFFFFFFF
    code = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code


@lru_cache(maxsize=4096)
def encode_key(transactional_id: str) -> bytes:
    """Return the record key of an id."""
    name = transactional_id.encode()
    return _INT16.pack(KEY_VERSION) + _INT16.pack(len(name)) + name


def decode_key(key: bytes) -> str:
    """Return the id of a record key. Raises UnknownKeyVersionError and TransactionLogError."""
    reader = _Reader(key)
    version = reader.number(_INT16)
    if version != KEY_VERSION:
        raise UnknownKeyVersionError(version)
    name = reader.text(reader.number(_INT16))
    reader.end()
    return name


def value_version(transaction_version: int) -> int:
    """Return the value version that a cluster of this finalized `transaction.version` writes."""
    return 0 if transaction_version == 0 else 1


def fits_version_0(metadata: TransactionMetadata) -> bool:
    """Return whether a value of version 0 has all data that a new coordinator needs.

    A value of version 1 always does. Version 0 has no field for the transaction version of the client's requests, which
    is then read as 0.
    """
    return metadata.client_transaction_version == 0


def encode_value(
    metadata: TransactionMetadata, version: int, *, has_last_epoch: bool = True, has_next_epoch: bool = True
) -> bytes:
    """Return the record value of an id in value version 0 or 1; version 0 has no tagged fields.

    Releases up to 4.4.0 write neither the last epoch (KAFKA-20357) nor the next one (KIP-939). Without the last epoch,
    a previous producer id of -1 (unchanged) is written as the id's own, as in those releases.
    """
    if metadata.state not in PERSISTED_STATES:
        raise ValueError(f"{metadata.state.label} exists in memory only and is never written")
    head = _HEAD.pack(version, metadata.producer_id, metadata.producer_epoch, metadata.timeout_ms, metadata.state)
    times = _TIMES.pack(metadata.last_update_timestamp_ms, metadata.start_timestamp_ms)
    if version == 0:
        return head + _partitions_v0(metadata) + times
    if not has_last_epoch:
        metadata = _as_released(metadata, has_next_epoch=has_next_epoch)
    partitions = metadata.topic_partitions
    if metadata.state is EMPTY:
        topics = b"\0"
    else:
        topics = _few_partitions_v1(partitions) if len(partitions) <= _FEW else _many_partitions_v1(partitions)
    return head + topics + times + _tags(metadata)


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata:
    """Return the metadata in a record value. Raises TransactionLogError, also for a state that is never written."""
    reader = _Reader(value)
    version = reader.number(_INT16)
    if version not in (0, 1):
        raise TransactionLogError(f"unknown value version {version} for {transactional_id!r} in __transaction_state")
    producer_id, producer_epoch = reader.number(_INT64), reader.number(_INT16)
    timeout_ms, status = reader.number(_INT32), reader.number(struct.Struct(">b"))
    if status not in PERSISTED_STATES:
        raise TransactionLogError(f"status {status} for {transactional_id!r} is never written to the log")
    partitions = reader.partitions_v0() if version == 0 else reader.partitions_v1()
    last_update_timestamp_ms, start_timestamp_ms = reader.number(_INT64), reader.number(_INT64)
    tags = {} if version == 0 else reader.tags()
    reader.end()
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=TransactionState(status),
        topic_partitions=frozenset(partitions),
        start_timestamp_ms=start_timestamp_ms,
        last_update_timestamp_ms=last_update_timestamp_ms,
        **tags,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        topics[topic].append(partition)
    return topics


def _partitions_v0(metadata: TransactionMetadata) -> bytes:
    if metadata.state is EMPTY:
        return _INT32.pack(-1)
    topics = _by_topic(metadata.topic_partitions)
    parts = [_INT32.pack(len(topics))]
    for topic, partitions in topics.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, struct.pack(f">i{len(partitions)}i", len(partitions), *partitions))
    return b"".join(parts)


_FEW = 4


def _many_partitions_v1(topic_partitions: frozenset[TopicPartition]) -> bytes:
    topics = _by_topic(topic_partitions)
    parts = [uvarint(len(topics) + 1)]
    for topic, partitions in topics.items():
        name = topic.encode()
        numbers = struct.pack(f">{len(partitions)}i", *partitions)
        parts += (uvarint(len(name) + 1), name, uvarint(len(partitions) + 1), numbers, uvarint(0))
    return b"".join(parts)


_few_partitions_v1 = lru_cache(maxsize=4096)(_many_partitions_v1)
"""Cached, because a producer writes to the same few partitions in transaction after transaction."""


def _tags_writer() -> Callable[[TransactionMetadata], bytes]:
    """Return a function that encodes the tagged fields, with a line for each, as every transaction writes three."""
    lines = ["def tags(metadata):", "    count, written = 0, b''"]
    names: dict[str, Any] = {"SINGLE_BYTES": SINGLE_BYTES}
    for tag, (name, number, default) in enumerate(_TAGS):
        names |= {f"head_{name}": uvarint(tag) + uvarint(number.size), f"pack_{name}": number.pack}
        lines += [
            f"    value = metadata.{name}",
            f"    if value != {default}:",
            f"        written += head_{name} + pack_{name}(value)",
            "        count += 1",
        ]
    lines.append("    return SINGLE_BYTES[count] + written")
    exec(compile("\n".join(lines), f"<{__name__}>", "exec"), names)
    made: Callable[[TransactionMetadata], bytes] = names["tags"]
    return made


_tags = _tags_writer()


def _as_released(metadata: TransactionMetadata, *, has_next_epoch: bool) -> TransactionMetadata:
    unchanged = metadata.previous_producer_id == NO_PRODUCER_ID
    return metadata._replace(
        previous_producer_id=metadata.producer_id if unchanged else metadata.previous_producer_id,
        next_producer_epoch=metadata.next_producer_epoch if has_next_epoch else NO_PRODUCER_EPOCH,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )


class _Reader:
    """Reads a record field by field. Missing bytes, or bytes left over, raise TransactionLogError."""

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self._position = 0

    def take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._buffer):
            raise TransactionLogError(f"record of {len(self._buffer)} bytes ends within a field of {size}")
        taken = self._buffer[self._position : end]
        self._position = end
        return taken

    def end(self) -> None:
        if self._position != len(self._buffer):
            raise TransactionLogError(f"{len(self._buffer) - self._position} bytes left over after the last field")

    def number(self, kind: struct.Struct) -> int:
        value: int = kind.unpack(self.take(kind.size))[0]
        return value

    def text(self, size: int) -> str:
        name = self.take(size)
        try:
            return name.decode()
        except UnicodeDecodeError as error:
            raise TransactionLogError(f"name {name!r} is not UTF-8") from error

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def partitions_v0(self) -> list[TopicPartition]:
        partitions: list[TopicPartition] = []
        for _ in range(max(self.number(_INT32), 0)):
            topic = self.text(self.number(_INT16))
            partitions += (TopicPartition(topic, self.number(_INT32)) for _ in range(self.number(_INT32)))
        return partitions

    def partitions_v1(self) -> list[TopicPartition]:
        partitions: list[TopicPartition] = []
        for _ in range(max(self.uvarint() - 1, 0)):
            topic = self.text(self.uvarint() - 1)
            partitions += (TopicPartition(topic, self.number(_INT32)) for _ in range(self.uvarint() - 1))
            self._skip_tags()
        return partitions

    def tags(self) -> dict[str, Any]:
        """Read the known tagged fields and skip the others, as KIP-915 requires."""
        known: dict[str, Any] = {}
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            payload = self.take(size)
            if tag < len(_TAGS):
                name, number, _ = _TAGS[tag]
                if size != number.size:
                    raise TransactionLogError(f"tag {tag} ({name}) has {size} bytes instead of {number.size}")
                known[name] = number.unpack(payload)[0]
        return known

    def _skip_tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())
