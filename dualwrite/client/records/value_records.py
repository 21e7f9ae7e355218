"""Full record batches of nothing but values.

What a record has besides its value are a few varints; they are looked up and one join makes the batch, so that no byte
is copied twice and the checksum is left to the processor: for large values that takes a third of what a builder of
compiled code takes, whose checksum is not. For small ones its loop is the faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from dualwrite.client.records.encoded_batch import EncodedBatch

_NO_KEY: Final = b"\x01"
_NO_ATTRIBUTES_NO_TIME_DELTA: Final = b"\0\0"
_NO_HEADERS: Final = b"\0"
_LEAST_RECORD_BYTES: Final = 7
_LENGTHS_KEPT: Final = 65_536


def _varint(number: int) -> bytes:
    """Of a number from 0 on, zigzag."""
    number <<= 1
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


_before_value: Final[list[bytes]] = []
"""By offset delta: everything between a record's length and that of its value."""

_lengths: Final[dict[int, bytes]] = {}
"""As varints; a dictionary is asked twice for each record, so it is one without a function around it."""


def _known_offsets(count: int) -> list[bytes]:
    for delta in range(len(_before_value), count):
        _before_value.append(_NO_ATTRIBUTES_NO_TIME_DELTA + _varint(delta) + _NO_KEY)
    return _before_value


def _new_length(length: int) -> bytes:
    if len(_lengths) >= _LENGTHS_KEPT:
        _lengths.clear()
    written = _lengths[length] = _varint(length)
    return written


def full_batch(
    values: Sequence[bytes], first: int, room: int, *, timestamp_ms: int, transactional: bool
) -> EncodedBatch:
    """As many values from `first` on as `room` bytes of records take, and one at least."""
    most = min(room // _LEAST_RECORD_BYTES + 1, len(values) - first)
    parts: list[bytes] = []
    add = parts.append
    used = count = 0
    for before, value in zip(_known_offsets(most), islice(values, first, first + most), strict=False):
        length = len(value)
        head = before + (_lengths.get(length) or _new_length(length))
        size = len(head) + length + 1
        start = (_lengths.get(size) or _new_length(size)) + head
        used += len(start) + length + 1
        if used > room and count:
            break
        count += 1
        add(start)
        add(value)
        add(_NO_HEADERS)
    return EncodedBatch(
        b"".join(parts),
        record_count=count,
        first_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        transactional=transactional,
    )
