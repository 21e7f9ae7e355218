"""The codecs of `compression.type`, in the formats that Kafka's consumers read: Python's gzip, and cramjam's others."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from dualwrite.errors import ConfigError

try:
    import cramjam
except ImportError:
    cramjam = None  # type: ignore[assignment]


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
    if kind.needs_cramjam and cramjam is None:
        raise ConfigError(
            f"compression.type={kind.name} needs a package that is not installed: pip install 'dualwrite[compression]' "
            "(or cramjam)"
        )
    return Codec(compression_type, partial(kind.compress, kind.default_level if level is None else level))
