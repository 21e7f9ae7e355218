"""Record batches with a right checksum whose records are wrong, and Apache Kafka 4.4.0's response to each."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

from crc32c import crc32c

_AFTER_CRC = struct.Struct(">hiqqqhii")
NOW_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
OK, UNKNOWN, INVALID, BAD_TIMESTAMP, UNSUPPORTED_CODEC = 0, -1, 87, 32, 76
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LOG_APPEND_TIME: Final = 8


def varint(value: int) -> bytes:
    unsigned = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while unsigned > 0x7F:
        encoded.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    return bytes((*encoded, unsigned))


def sized(body: bytes) -> bytes:
    return varint(len(body)) + body


def record(
    offset_delta: int = 0,
    *,
    key: bytes = varint(-1),
    value: bytes = b"\2v",
    headers: bytes = b"\0",
    timestamp_delta: bytes = b"\0",
) -> bytes:
    return sized(b"\0" + timestamp_delta + varint(offset_delta) + key + value + headers)


def batch(
    body: bytes,
    *,
    count: int = 1,
    attributes: int = 0,
    base_timestamp: int = NOW_MS,
    max_timestamp: int | None = None,
    last_offset_delta: int | None = None,
) -> bytes:
    last = count - 1 if last_offset_delta is None else last_offset_delta
    newest = base_timestamp if max_timestamp is None else max_timestamp
    checked = _AFTER_CRC.pack(attributes, last, base_timestamp, newest, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked


def compressed(codec: int, body: bytes) -> bytes:
    if codec == GZIP:
        return gzip.compress(body)
    cramjam: Any = import_module("cramjam")
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(body))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(body))
    compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)  # KIP-57
    compressor.compress(body)
    return bytes(compressor.finish())


def linked(codec: int, body: bytes) -> bytes:
    """Compress with blocks that refer to others, if the codec can."""
    cramjam: Any = import_module("cramjam")
    return bytes(cramjam.lz4.compress(body)) if codec == LZ4 else compressed(codec, body)


class Case(NamedTuple):
    """One batch, and the error for it."""

    error: int
    records: bytes
    version: int = 9


RECORD: Final = record()
_ENDLESS: Final = b"\xff" * 30

UNCOMPRESSED: Final[Mapping[str, Case]] = {
    "as it should be": Case(OK, batch(RECORD)),
    "fewer records than counted": Case(INVALID, batch(RECORD + bytes(20), count=2)),
    "more records than counted": Case(INVALID, batch(RECORD * 2)),
    "bytes behind the records": Case(INVALID, batch(RECORD + b"\0")),
    "rubbish": Case(INVALID, batch(b"rubbish that is no record at all")),
    "a length beyond the batch": Case(INVALID, batch(varint(100) + bytes(20))),
    "a length below zero": Case(INVALID, batch(varint(-1) + bytes(20))),
    "an endless length": Case(UNKNOWN, batch(_ENDLESS)),
    "an endless timestamp": Case(INVALID, batch(record(timestamp_delta=_ENDLESS))),
    "an endless offset": Case(INVALID, batch(sized(b"\0\0" + _ENDLESS))),
    "a key beyond the record": Case(INVALID, batch(record(key=varint(100)))),
    "a value beyond the record": Case(INVALID, batch(record(value=varint(100)))),
    "a value that ends early": Case(INVALID, batch(record(value=b"\2vv"))),
    "headers below zero": Case(INVALID, batch(record(headers=varint(-1)))),
    "more headers than bytes": Case(INVALID, batch(record(headers=varint(1000)))),
    "a header without a name": Case(INVALID, batch(record(headers=varint(1) + varint(-1) + varint(-1)))),
    "a header that is not UTF-8": Case(OK, batch(record(headers=varint(1) + b"\2\xff" + varint(-1)))),
    "a header": Case(OK, batch(record(headers=varint(1) + b"\2h" + b"\2v"))),
    "a key of length -2": Case(OK, batch(record(key=varint(-2)))),
    "attributes of a record": Case(OK, batch(sized(b"\xff\0\0\1\1\0"))),
    "offsets that do not count up": Case(OK, batch(record(5) + record(5), count=2)),
    "an offset below zero": Case(OK, batch(record(-3))),
    "a delta of ten bytes": Case(OK, batch(record(timestamp_delta=b"\x80" * 9 + b"\0"))),
    "a delta of eleven bytes": Case(INVALID, batch(record(timestamp_delta=b"\x80" * 10 + b"\0"))),
    "a length of five bytes": Case(OK, batch(b"\x8e\x80\x80\x80\x00" + RECORD[1:])),
    "a length of six bytes": Case(UNKNOWN, batch(b"\x8e\x80\x80\x80\x80\x00" + RECORD[1:])),
    "a wrong newest timestamp": Case(OK, batch(RECORD, max_timestamp=NOW_MS + 5)),
    "no timestamp": Case(OK, batch(RECORD, base_timestamp=-1)),
    "a timestamp before all others": Case(BAD_TIMESTAMP, batch(RECORD, base_timestamp=-(2**63))),
    "a timestamp before 1970": Case(OK, batch(RECORD, base_timestamp=-2)),
    "a timestamp behind all others": Case(BAD_TIMESTAMP, batch(RECORD, base_timestamp=2**63 - 1)),
    "a timestamp that wraps around": Case(
        BAD_TIMESTAMP, batch(record(timestamp_delta=b"\2"), base_timestamp=2**63 - 1, max_timestamp=0)
    ),
    "the broker's time": Case(OK, batch(RECORD, attributes=LOG_APPEND_TIME)),
    "the broker's time without one": Case(BAD_TIMESTAMP, batch(RECORD, attributes=LOG_APPEND_TIME, base_timestamp=-1)),
    "a delete horizon": Case(OK, batch(RECORD, attributes=0x40)),
    "unused attributes": Case(OK, batch(RECORD, attributes=-0x8000)),
}


def _with_codec(codec: int) -> dict[str, Case]:
    def packed(body: bytes, **values: Any) -> bytes:
        return batch(compressed(codec, body), attributes=codec, **values)

    whole = compressed(codec, RECORD * 100)
    return {
        "linked blocks": Case(UNKNOWN if codec == LZ4 else OK, batch(linked(codec, RECORD), attributes=codec)),
        "as it should be": Case(OK, packed(RECORD)),
        "fewer records than counted": Case(INVALID, packed(RECORD, count=2)),
        "more records than counted": Case(INVALID, packed(RECORD * 2)),
        "bytes behind the records": Case(INVALID, packed(RECORD + b"\0")),
        "rubbish in it": Case(INVALID, packed(b"rubbish that is no record at all")),
        "rubbish": Case(UNKNOWN, batch(b"rubbish that is not compressed at all", attributes=codec)),
        "nothing": Case(INVALID if codec == ZSTD else UNKNOWN, batch(b"", attributes=codec)),
        "half of it": Case(UNKNOWN, batch(whole[: len(whole) // 2], count=100, attributes=codec)),
        "bytes behind it": Case(
            OK if codec in (GZIP, LZ4) else UNKNOWN, batch(compressed(codec, RECORD) + b"more", attributes=codec)
        ),
        "an endless length": Case(INVALID, packed(_ENDLESS)),
        "a key beyond the record": Case(INVALID, packed(record(key=varint(100)))),
        "headers below zero": Case(INVALID, packed(record(headers=varint(-1)))),
        "more headers than bytes": Case(INVALID, packed(record(headers=varint(1000)))),
        "a value that ends early": Case(INVALID, packed(record(value=b"\2vv"))),
        "offsets that do not count up": Case(UNKNOWN, packed(record(5) + record(5), count=2)),
    }


COMPRESSED: Final[Mapping[str, Case]] = {
    f"{name} ({codec})": case for codec in (GZIP, SNAPPY, LZ4, ZSTD) for name, case in _with_codec(codec).items()
}

CODECS: Final[Mapping[str, Case]] = {
    **{f"codec {codec}": Case(UNKNOWN, batch(RECORD, attributes=codec)) for codec in (5, 6, 7)},
    "zstd in v6": Case(UNSUPPORTED_CODEC, batch(compressed(ZSTD, RECORD), attributes=ZSTD), 6),
    "zstd in v7": Case(OK, batch(compressed(ZSTD, RECORD), attributes=ZSTD), 7),
}

CASES: Final[Mapping[str, Case]] = {**UNCOMPRESSED, **COMPRESSED, **CODECS}
