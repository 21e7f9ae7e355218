"""One record of a batch of magic 2 (KIP-98): its fields, and their encoding."""

from __future__ import annotations

from typing import NamedTuple

from dualwrite.broker_emulator.log.record_fields import uvarint

_MAX_VARINT_BITS = 70
_TWO_TO_63 = 1 << 63


class RecordHeader(NamedTuple):
    """One header of a record."""

    key: str
    value: bytes | None


class Record(NamedTuple):
    """One record of a batch; `timestamp` in milliseconds since the Unix epoch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[RecordHeader, ...] = ()


def encode_record(index: int, key: bytes | None, value: bytes | None) -> bytes:
    """Encode a record with the timestamp of its batch and without headers."""
    keyed = _NULL if key is None else _VARINTS[len(key)] + key
    valued = _NULL if value is None else _VARINTS[len(value)] + value
    body = b"\x00\x00" + _VARINTS[index] + keyed + valued + NO_HEADERS
    return _VARINTS[len(body)] + body


def encode_again(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    """Encode a decoded record."""
    headers = (
        _encode_bytes(header.key.encode(errors="surrogateescape")) + _encode_bytes(header.value)
        for header in record.headers
    )
    body = (
        b"\x00"
        + _encode_varint(wrapped(record.timestamp - base_timestamp))
        + _encode_varint(record.offset - base_offset)
        + _encode_bytes(record.key)
        + _encode_bytes(record.value)
        + _encode_varint(len(record.headers))
        + b"".join(headers)
    )
    return _encode_varint(len(body)) + body


def _encode_bytes(data: bytes | None) -> bytes:
    return _NULL if data is None else _VARINTS[len(data)] + data


def _encode_varint(value: int) -> bytes:
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)  # zigzag


class _Varints(dict[int, bytes]):
    """Encoded numbers; small numbers, the usual ones, come from a table."""

    def __missing__(self, value: int) -> bytes:
        return _encode_varint(value)


_VARINTS = _Varints({value: _encode_varint(value) for value in range(512)})
_NULL = _encode_varint(-1)
NO_HEADERS = _VARINTS[0]


def wrapped(number: int) -> int:
    """Return a number wrapped to 64 bits, in which Java's clients and brokers calculate times."""
    return number if -_TWO_TO_63 <= number < _TWO_TO_63 else (number + _TWO_TO_63) % (2 * _TWO_TO_63) - _TWO_TO_63


def decode_record(body: bytes, position: int, base_offset: int, base_timestamp: int) -> tuple[Record, int]:
    """Return the record at `position`, and the position after it. Raises IndexError for bytes that are no record."""
    length, position = decode_varint(body, position)
    end = position + length
    timestamp_delta, position = decode_varint(body, position + 1)  # one byte of attributes, unused
    offset_delta, position = decode_varint(body, position)
    key, position = _decode_bytes(body, position)
    value, position = _decode_bytes(body, position)
    header_count, position = decode_varint(body, position)
    headers = []
    for _ in range(header_count):
        name, position = _decode_bytes(body, position)
        content, position = _decode_bytes(body, position)
        headers.append(RecordHeader((name or b"").decode(errors="surrogateescape"), content))
    if position != end:
        raise IndexError(f"a record of {length} bytes ends {position - end} bytes off")
    timestamp = wrapped(base_timestamp + timestamp_delta)
    return Record(base_offset + offset_delta, timestamp, key, value, tuple(headers)), position


def _decode_bytes(body: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(body, position)
    if length < 0:
        return None, position
    if position + length > len(body):
        raise IndexError(f"{length} bytes at {position} reach beyond the batch")
    return body[position : position + length], position + length


def decode_varint(body: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position`, and the position after it. Raises IndexError."""
    unsigned = shift = 0
    while True:
        byte = body[position]
        position += 1
        unsigned |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (unsigned >> 1) ^ -(unsigned & 1), position
        shift += 7
        if shift >= _MAX_VARINT_BITS:
            raise IndexError("a number of more than ten bytes")
