"""Batches as they were before their producer compressed them. The broker keeps and serves them as they came.

gzip is Python's own; snappy, lz4 and zstd are cramjam's, where that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from dualwrite.broker_emulator.log.record_batch import (
    HEADER_BYTES,
    CorruptRecordError,
    UnsupportedCompressionError,
    parse_header,
    with_records,
)

_NAMES: Final = {2: "snappy", 3: "lz4", 4: "zstd"}
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
"""The magic, and two version numbers: how Java's snappy frames its blocks, each with its length before it."""


def uncompressed(batch: bytes) -> bytes:
    """The batch with its records uncompressed; itself where they are, or where gzip has compressed them.

    Raises UnsupportedCompressionError where cramjam is needed and not installed, CorruptRecordError for what does not
    decompress.
    """
    header = parse_header(batch)
    name = _NAMES.get(header.compression)
    if name is None:
        return batch
    try:
        codec = import_module("cramjam")
    except ImportError:
        raise UnsupportedCompressionError(
            f"the records at offset {header.base_offset} are compressed with {name}, which takes the package cramjam "
            "to read; nothing is wrong with them: install it, or let the producer use none or gzip"
        ) from None
    body = batch[HEADER_BYTES : header.size_bytes]
    try:
        return with_records(header, _DECOMPRESS[name](codec, body))
    except codec.DecompressionError as error:
        raise CorruptRecordError(f"the records of a {name} batch do not decompress") from error


def _snappy(codec: Any, body: bytes) -> bytes:
    if not body.startswith(_XERIAL_MAGIC):
        return bytes(codec.snappy.decompress_raw(body))
    blocks, position = [], _XERIAL_HEADER_BYTES
    while position < len(body):
        begins = position + 4
        position = begins + int.from_bytes(body[position:begins], "big")
        blocks.append(bytes(codec.snappy.decompress_raw(body[begins:position])))
    return b"".join(blocks)


_DECOMPRESS: Final[Mapping[str, Callable[[Any, bytes], bytes]]] = {
    "snappy": _snappy,
    "lz4": lambda codec, body: bytes(codec.lz4.decompress(body)),
    "zstd": lambda codec, body: bytes(codec.zstd.decompress(body)),
}
