"""Decompression of record batches with a limit: a mebibyte of gzip may stand for a gibibyte of records."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from dualwrite.broker_emulator.slices import Steps, at_once

NONE: Final = 0
GZIP: Final = 1
ZSTD: Final = 4
NAMES: Final[Mapping[int, str]] = {GZIP: "gzip", 2: "snappy", 3: "lz4", ZSTD: "zstd"}
MAX_BYTES: Final = 16 << 20
"""The size in bytes to which any batch may expand."""
TIMES: Final = 16
"""A batch may expand to this many times the size of its topic's largest batch, if that is more."""
MOST_BYTES: Final = 128 << 20
"""The upper limit in bytes for topics with very large batches: the memory is the broker's."""

_FIRST_GUESS: Final = 4
_GZIP_WINDOW: Final = 31
_GZIP_STEP_BYTES: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
"""The magic and two version numbers: the header of Java's snappy library, whose blocks follow with their lengths."""
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_KIND_BITS: Final = 0b1110_0010
_LZ4_KIND: Final = 0b0110_0000
"""Version 1, and blocks that do not refer to other blocks: Kafka reads no other frames (KIP-57)."""
_LZ4_HAS_BLOCK_CHECKSUMS: Final = 0x10
_LZ4_HAS_SIZE: Final = 0x08
_LZ4_HAS_CHECKSUM: Final = 0x04
_LZ4_SIZE: Final = 0x7FFF_FFFF
_NO_ROOM: Final = "failed to write whole buffer"


class CodecMissingError(ValueError):
    """The codec's library is not installed; `codec` is its name."""

    def __init__(self, codec: str) -> None:
        super().__init__(f"{codec} needs the package cramjam")
        self.codec = codec


class DecompressionError(ValueError):
    """The bytes are not valid for their codec, or there is no such codec."""


class ExpansionError(ValueError):
    """The records would take more memory than allowed."""


def limit_for(max_message_bytes: int) -> int:
    """Return the size to which a batch of a topic may expand, in bytes."""
    return min(max(MAX_BYTES, TIMES * max_message_bytes), MOST_BYTES)


def decompressed(codec: int, body: bytes | memoryview, limit: int) -> bytes:
    """Return `body` without its compression, as Kafka reads it.

    Raises DecompressionError, ExpansionError beyond `limit` bytes, CodecMissingError.
    """
    if codec == NONE:
        return bytes(body)
    expand = _EXPAND.get(codec)
    if expand is None:
        raise DecompressionError(f"unknown compression type {codec}")
    return expand(bytes(body), limit)


def decompressed_gzip(body: bytes, limit: int) -> Steps[bytes]:
    """Return `body` without gzip, in steps. Raises as `decompressed` does."""
    parts: list[bytes] = []
    left = limit
    while not parts or body.startswith(_GZIP_MAGIC):
        member = zlib.decompressobj(_GZIP_WINDOW)
        while not member.eof:
            try:
                parts.append(member.decompress(body, min(left + 1, _GZIP_STEP_BYTES)))
            except zlib.error as error:
                raise DecompressionError(str(error)) from None
            left -= len(parts[-1])
            if left < 0:
                raise _too_large(limit)
            if not member.eof and not parts[-1]:
                raise DecompressionError("a gzip stream ends early")
            body = member.unconsumed_tail
            yield
        body = member.unused_data
    return b"".join(parts)


def _gzip(body: bytes, limit: int) -> bytes:
    return at_once(decompressed_gzip(body, limit))


def _snappy(body: bytes, limit: int) -> bytes:
    if not body.startswith(_XERIAL_MAGIC):
        return _snappy_block(body, limit)
    parts: list[bytes] = []
    position, left = _XERIAL_HEADER_BYTES, limit
    while position < len(body):
        begins = position + 4
        position = begins + int.from_bytes(body[position:begins], "big")
        if position > len(body):
            raise DecompressionError("a snappy block ends early")
        parts.append(_snappy_block(body[begins:position], left))
        left -= len(parts[-1])
    return b"".join(parts)


def _snappy_block(block: bytes, limit: int) -> bytes:
    library = _library("snappy")
    try:
        size = library.snappy.decompress_raw_len(block)
        if not size and block != b"\0":
            raise DecompressionError("an empty snappy block")
        if size > limit:
            raise _too_large(limit)
        return bytes(library.snappy.decompress_raw(block))
    except library.DecompressionError as error:
        raise DecompressionError(str(error)) from None


def _lz4(body: bytes, limit: int) -> bytes:
    if not body.startswith(_LZ4_MAGIC) or len(body) < len(_LZ4_MAGIC) + 1:
        raise DecompressionError("no lz4 frame")
    if body[len(_LZ4_MAGIC)] & _LZ4_KIND_BITS != _LZ4_KIND:
        raise DecompressionError("an lz4 frame of a kind that Kafka does not read")
    return _frames("lz4", body[: _lz4_end(body)], limit)


def _lz4_end(body: bytes) -> int:
    """Return the end of the frame, since Kafka ignores the bytes after it."""
    flags = body[len(_LZ4_MAGIC)]
    position = len(_LZ4_MAGIC) + 3 + 8 * bool(flags & _LZ4_HAS_SIZE)
    while True:
        size = int.from_bytes(body[position : position + 4], "little") & _LZ4_SIZE
        position += 4
        if position > len(body):
            raise DecompressionError("an lz4 frame ends early")
        if not size:
            return position + 4 * bool(flags & _LZ4_HAS_CHECKSUM)
        position += size + 4 * bool(flags & _LZ4_HAS_BLOCK_CHECKSUMS)


def _zstd(body: bytes, limit: int) -> bytes:
    return _frames("zstd", body, limit) if body else b""


def _frames(codec: str, body: bytes, limit: int) -> bytes:
    """Decompress into a buffer that grows up to the limit, since frames need not state the size of their contents."""
    library = _library(codec)
    expand: Callable[[bytes, bytearray], int] = getattr(library, codec).decompress_into
    size = min(_FIRST_GUESS * len(body), limit)
    while True:
        buffer = bytearray(size)
        try:
            return bytes(memoryview(buffer)[: expand(body, buffer)])
        except library.DecompressionError as error:
            if _NO_ROOM not in str(error):
                raise DecompressionError(str(error)) from None
        if size >= limit:
            raise _too_large(limit)
        size = min(size * _FIRST_GUESS, limit)


def _too_large(limit: int) -> ExpansionError:
    return ExpansionError(f"the records of the batch take more than {limit} bytes once they are decompressed")


def _library(codec: str) -> Any:
    try:
        return import_module("cramjam")
    except ImportError:
        raise CodecMissingError(codec) from None


_EXPAND: Final[Mapping[int, Callable[[bytes, int], bytes]]] = {GZIP: _gzip, 2: _snappy, 3: _lz4, ZSTD: _zstd}
