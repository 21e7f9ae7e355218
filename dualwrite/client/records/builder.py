"""Adapter for the library that builds record batches: aiokafka's compiled builder if installed, else kafka-python's.

Measured for one record of 100 bytes: 0.5 us and 10 us.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

from dualwrite.client.records.compression import Codec

try:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder as _Builder
    from aiokafka.record.util import calc_crc32c as _crc32c

    _STAMP_ARGUMENTS: tuple[bool, ...] = ()
except ImportError:
    from dualwrite.client.wire.kafka_python import DefaultRecordBatchBuilder as _Builder  # type: ignore[assignment]
    from dualwrite.client.wire.kafka_python import calc_crc32c as _crc32c

    _STAMP_ARGUMENTS = (True,)

with contextlib.suppress(ImportError):  # uses the processor's instruction: a fifteenth of the others' time
    from crc32c import crc32c as _crc32c

Header = tuple[str, bytes | None]

_MAGIC: Final = 2
_LENGTH_OFFSET: Final = 8
_LENGTH_COUNTS_FROM: Final = 12
_CRC_OFFSET: Final = 17
_ATTRIBUTES_OFFSET: Final = 21
_PRODUCER_OFFSET: Final = 43
_RECORDS_OFFSET: Final = 61
_INT32: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qhi")


class RecordBatchBuilder(Protocol):
    """A record batch under construction; `build` writes the header."""

    def append(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: list[Header], /
    ) -> object | None:
        """Append a record; return None if the batch has no room for it. The first record always fits."""

    def size(self) -> int:
        """Return the number of bytes so far, before compression."""

    def build(self) -> bytearray:
        """Return the finished batch; call only once."""


def builder_factory(*, transactional: bool, batch_size: int) -> Callable[[], RecordBatchBuilder]:
    """Return a factory of builders.

    They do not compress: `stamp_and_build` compresses the finished batch, because the builders have no levels.
    """

    def new() -> RecordBatchBuilder:
        builder: Any = _Builder(_MAGIC, 0, int(transactional), -1, -1, -1, batch_size)
        return builder  # type: ignore[no-any-return]

    return new


def stamp_and_build(
    builder: RecordBatchBuilder,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    transactional: bool,
    codec: Codec | None = None,
) -> bytearray:
    """Return the finished batch with this producer id, epoch and sequence, compressed if there is a codec."""
    untyped: Any = builder
    untyped.set_producer_state(producer_id, producer_epoch, base_sequence, *(transactional for _ in _STAMP_ARGUMENTS))
    data = builder.build()
    return data if codec is None else _compressed(data, codec)


def _compressed(data: bytearray, codec: Codec) -> bytearray:
    with memoryview(data) as view, view[_RECORDS_OFFSET:] as records:
        compressed = codec.compress(records)
    data[_RECORDS_OFFSET:] = compressed
    _INT32.pack_into(data, _LENGTH_OFFSET, len(data) - _LENGTH_COUNTS_FROM)
    data[_ATTRIBUTES_OFFSET + 1] |= codec.number
    return checksummed(data)


def restamp(data: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Write another producer id, epoch and sequence into a finished batch, and update its checksum."""
    _PRODUCER.pack_into(data, _PRODUCER_OFFSET, producer_id, producer_epoch, base_sequence)
    checksummed(data)


def checksummed(data: bytearray) -> bytearray:
    """Update and return a batch whose header or records have changed: compute its checksum."""
    checksum_of: Any = _crc32c
    with memoryview(data) as view, view[_ATTRIBUTES_OFFSET:] as covered:
        checksum = checksum_of(covered)
    _CRC.pack_into(data, _CRC_OFFSET, checksum)
    return data
