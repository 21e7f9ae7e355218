"""The seam to whoever writes record batches: aiokafka's compiled builder where installed, else kafka-python's.

Measured on one record of 100 bytes: 0.5 us against 10 us.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

from dualwrite.config import COMPRESSION_TYPES
from dualwrite.errors import ConfigError

try:
    from aiokafka.errors import UnsupportedCodecError as _MissingCodecError
    from aiokafka.record.default_records import DefaultRecordBatchBuilder as _Builder
    from aiokafka.record.util import calc_crc32c as _crc32c

    _STAMP_ARGUMENTS: tuple[bool, ...] = ()
    _CODEC_PACKAGES: dict[str, str] = dict.fromkeys(("snappy", "lz4", "zstd"), "cramjam")
except ImportError:
    from dualwrite.client.kafka_python import DefaultRecordBatchBuilder as _Builder  # type: ignore[assignment]
    from dualwrite.client.kafka_python import UnsupportedCodecError as _MissingCodecError  # type: ignore[assignment]
    from dualwrite.client.kafka_python import calc_crc32c as _crc32c

    _STAMP_ARGUMENTS = (True,)
    _CODEC_PACKAGES = {"snappy": "python-snappy", "lz4": "lz4", "zstd": "zstandard"}

Header = tuple[str, bytes | None]

_MAGIC: Final = 2
_CRC_OFFSET: Final = 17
_ATTRIBUTES_OFFSET: Final = 21
_PRODUCER_OFFSET: Final = 43
_CRC: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qhi")


class RecordBatchBuilder(Protocol):
    """A record batch under construction; the header is written by `build`."""

    def append(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: list[Header], /
    ) -> object | None:
        """None when the batch has no room; the first record always has."""

    def size(self) -> int:
        """Bytes so far, before compression."""

    def build(self) -> bytearray:
        """The finished batch; only once."""


def builder_factory(*, compression_type: int, transactional: bool, batch_size: int) -> Callable[[], RecordBatchBuilder]:
    """A factory of builders; `ConfigError` where the codec's library is missing."""

    def new() -> RecordBatchBuilder:
        builder: Any = _Builder(_MAGIC, compression_type, int(transactional), -1, -1, -1, batch_size)
        return builder  # type: ignore[no-any-return]

    _check_codec(new(), compression_type)
    return new


def _check_codec(builder: RecordBatchBuilder, compression_type: int) -> None:
    try:
        builder.append(0, 0, None, b"0" * 100, [])
        builder.build()
    except _MissingCodecError as error:
        name = next(name for name, number in COMPRESSION_TYPES.items() if number == compression_type)
        raise ConfigError(
            f"compression.type={name} needs a package that is not installed: pip install {_CODEC_PACKAGES[name]}"
        ) from error


def stamp_and_build(
    builder: RecordBatchBuilder, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool
) -> bytearray:
    """The finished batch under this identity."""
    untyped: Any = builder
    untyped.set_producer_state(producer_id, producer_epoch, base_sequence, *(transactional for _ in _STAMP_ARGUMENTS))
    return builder.build()


def restamp(data: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Give a finished batch another identity, and the checksum that follows from it."""
    _PRODUCER.pack_into(data, _PRODUCER_OFFSET, producer_id, producer_epoch, base_sequence)
    checksum: Any = _crc32c(data[_ATTRIBUTES_OFFSET:])
    _CRC.pack_into(data, _CRC_OFFSET, checksum)
