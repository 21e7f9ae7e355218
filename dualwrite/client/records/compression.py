"""The codecs of `compression.type`, as Kafka's clients read and write them: Python's gzip, and cramjam's others."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from dualwrite.errors import ConfigError

try:
    import cramjam
except ImportError:
    cramjam = None  # type: ignore[assignment]


_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER_BYTES: Final = 16
_BLOCK_SIZE: Final = struct.Struct(">i")


class Codec(NamedTuple):
    """A compression function; `number` is its code in the attributes of a record batch."""

    number: int
    compress: Callable[[memoryview], bytes]


class _Kind(NamedTuple):
    name: str
    least_level: int
    greatest_level: int
    default_level: int
    needs_cramjam: bool
    compress: Callable[[int, memoryview], bytes]


def _gzip(level: int, data: memoryview) -> bytes:
    return gzip.compress(data, level, mtime=0)


def _snappy(level: int, data: memoryview) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def _lz4(level: int, data: memoryview) -> bytes:
    # Kafka's consumers cannot read blocks that refer to other blocks (KIP-57)
    compressor: Any = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # it does not take a memoryview
    return bytes(compressor.finish())


def _zstd(level: int, data: memoryview) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=level))


# Levels and defaults are those of KIP-390, except lz4's: Kafka's 9 is several times slower and saves a few percent.
_KINDS: Final[dict[int, _Kind]] = {
    1: _Kind("gzip", 1, 9, 6, False, _gzip),
    2: _Kind("snappy", 0, 0, 0, True, _snappy),
    3: _Kind("lz4", 1, 12, 1, True, _lz4),
    4: _Kind("zstd", -131072, 22, 3, True, _zstd),
}


def codec_for(compression_type: int, level: int | None) -> Codec | None:
    """Return the codec of a compression type; None for no compression.

    Raises `ConfigError` if the library is missing, or if the type does not have that level.
    """
    kind = _KINDS.get(compression_type)
    if kind is None:
        if level is not None:
            raise ConfigError("compression.level needs a compression.type")
        return None
    if level is not None and (not kind.greatest_level or not kind.least_level <= level <= kind.greatest_level):
        levels = (
            f"whose levels are {kind.least_level} to {kind.greatest_level}"
            if kind.greatest_level
            else "which has no levels"
        )
        raise ConfigError(f"compression.level={level} is not a level of {kind.name}, {levels}")
    _check_installed(kind)
    return Codec(compression_type, partial(kind.compress, kind.default_level if level is None else level))


def _check_installed(kind: _Kind) -> None:
    if kind.needs_cramjam and cramjam is None:
        raise ConfigError(
            f"compression.type={kind.name} needs a package that is not installed: pip install 'dualwrite[compression]' "
            "(or cramjam)"
        )


def _of_snappy(data: bytes) -> bytes:
    """Decompress a raw block, or the blocks in the format of Java's clients and brokers (xerial)."""
    if not data.startswith(_XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(data))
    blocks: list[bytes] = []
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        (size,) = _BLOCK_SIZE.unpack_from(data, position)
        position += _BLOCK_SIZE.size
        blocks.append(bytes(cramjam.snappy.decompress_raw(data[position : position + size])))
        position += size
    return b"".join(blocks)


_DECOMPRESS: Final[dict[int, Callable[[bytes], bytes]]] = {
    1: gzip.decompress,
    2: _of_snappy,
    3: lambda data: bytes(cramjam.lz4.decompress(data)),
    4: lambda data: bytes(cramjam.zstd.decompress(data)),
}


def decompressed(compression_type: int, data: memoryview) -> memoryview:
    """Return the records of a batch, from any client or broker, decompressed.

    Raises `ConfigError` if the library is missing, and anything else if the bytes are not of that type.
    """
    if compression_type == 0:
        return data
    kind = _KINDS.get(compression_type)
    if kind is None:
        raise ValueError(f"unknown compression type {compression_type}")
    _check_installed(kind)
    return memoryview(_DECOMPRESS[compression_type](bytes(data)))
