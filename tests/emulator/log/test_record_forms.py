"""Records that are checked together are judged as by a walk over single numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker_emulator.log.record_forms import (
    EndlessLengthError,
    OffsetOrderError,
    RecordFormatError,
)
from dualwrite.broker_emulator.log.record_walk import check_records
from tests.emulator.log.bad_batches import record, sized, varint
from tests.support.proof_only import examples

_SHAPES = st.tuples(
    st.integers(1, 120),  # how many records
    st.sampled_from([(0, 3), (40, 70), (50, 60), (0, 140), (90, 300), (1000, 1100), (8100, 8300), (20, 20)]),  # values
    st.sampled_from([None, 0, 3, 16, 45, 70]),  # key
    st.sampled_from([0, 70, 20_000, -1]),  # timestamp
    st.sampled_from([0, 0, 0, 1, 2]),  # headers
    st.sampled_from([0, 0, 0, 60, 8150, 70_000]),  # added to the offset
)


def _numbers(data: bytes, position: int, longest: int) -> tuple[int, int]:
    unsigned = shift = 0
    for end in range(position, position + longest):
        unsigned |= (data[end] & 0x7F) << shift
        shift += 7
        if data[end] < 0x80:
            bits = 32 if longest == 5 else 64
            unsigned %= 1 << bits
            return (unsigned >> 1) ^ -(unsigned & 1), end + 1
    raise RecordFormatError("too long")


def _plain_record(data: bytes, begin: int) -> tuple[int, int]:
    """Return the offset and the end of a record, read as simply as possible."""
    first = data[begin : begin + 5]
    if len(first) == 5 and all(byte >= 0x80 for byte in first):
        raise EndlessLengthError("too long")
    length, position = _numbers(data, begin, 5)
    end = position + length
    if length < 0 or end > len(data):
        raise RecordFormatError("beyond the end")
    _, position = _numbers(data, position + 1, 10)
    offset, position = _numbers(data, position, 5)
    for _ in ("key", "value"):
        size, position = _numbers(data, position, 5)
        position += max(size, 0)
    headers, position = _numbers(data, position, 5)
    if not 0 <= headers <= len(data) - position:
        raise RecordFormatError("headers")
    for _ in range(headers):
        size, position = _numbers(data, position, 5)
        if size < 0:
            raise RecordFormatError("no name")
        size, position = _numbers(data, position + size, 5)
        position += max(size, 0)
    if position != end:
        raise RecordFormatError("off")
    return offset, end


def _plainly(data: bytes, count: int, *, in_order: bool) -> type[Exception] | None:
    position = 0
    try:
        for index in range(count):
            offset, position = _plain_record(data, position)
            if in_order and offset != index:
                return OffsetOrderError
    except IndexError:
        return RecordFormatError
    except RecordFormatError as error:
        return type(error)
    return None if position == len(data) else RecordFormatError


def _together(data: bytes, count: int, *, in_order: bool) -> type[Exception] | None:
    try:
        check_records(data, count, in_order=in_order)
    except RecordFormatError as error:
        return type(error)
    return None


Runs = Sequence[tuple[int, tuple[int, int], int | None, int, int, int]]


def _encoded(runs: Runs, generator: random.Random) -> list[bytes]:
    records: list[bytes] = []
    for times, (least, most), key, delta, headers, added in runs:
        for _ in range(times):
            value = generator.randbytes(generator.randint(least, most))
            records.append(
                record(
                    len(records) + added,
                    key=varint(-1) if key is None else sized(generator.randbytes(key)),
                    value=sized(value) if generator.random() < 0.999 else varint(-1),
                    timestamp_delta=varint(delta),
                    headers=varint(headers) + (sized(b"h") + sized(b"v")) * headers,
                )
            )
    return records


@settings(max_examples=examples(40), deadline=None, derandomize=True, database=None)
@given(st.lists(_SHAPES, min_size=1, max_size=5), st.integers(0, 1 << 30))
def test_whole_and_damaged(runs: Runs, seed: int) -> None:
    generator = random.Random(seed)
    records = _encoded(runs, generator)
    body = b"".join(records)
    for in_order in (False, True):
        for count in {len(records), len(records) - 1, len(records) + 1}:
            assert _together(body, count, in_order=in_order) == _plainly(body, count, in_order=in_order)
        for damage in _DAMAGES:
            damaged = damage(body, records, generator)
            verdict = _plainly(damaged, len(records), in_order=in_order)
            assert _together(damaged, len(records), in_order=in_order) == verdict


def _flipped(body: bytes, records: list[bytes], generator: random.Random) -> bytes:
    """Change a byte at the beginning of a record, where the deciding fields are."""
    victim = generator.randrange(len(records))
    begin = sum(map(len, records[:victim]))
    damaged = bytearray(body)
    damaged[begin + generator.randrange(min(len(records[victim]), 12))] = generator.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
    return bytes(damaged)


def _flipped_at_an_end(body: bytes, records: list[bytes], generator: random.Random) -> bytes:
    end = sum(map(len, records[: generator.randint(1, len(records))]))
    return body[: end - 1] + bytes([generator.randrange(1, 256)]) + body[end:]


def _cut(body: bytes, records: list[bytes], generator: random.Random) -> bytes:
    return body[: generator.randrange(len(body))]


def _with_another_record(body: bytes, records: list[bytes], generator: random.Random) -> bytes:
    """Replace a record by one with overlong numbers, or with parts that do not add up."""
    victim = generator.randrange(len(records))
    value = generator.randbytes(generator.randint(0, 150))
    strange = generator.choice(
        (
            _padded(bytes(3) + b"\1" + sized(value) + b"\0"),
            sized(bytes(3) + b"\1" + varint(len(value) + 1) + value + b"\0"),
            sized(bytes(3) + b"\1" + varint(len(value) - 1) + value + b"\0"),
            sized(bytes(3) + b"\1" + _padded(value) + b"\0"),
            sized(bytes(2) + b"\x80\0\1" + sized(value) + b"\0"),
            sized(b"\0\x80\0\0\1" + sized(value) + b"\0"),
        )
    )
    return b"".join([*records[:victim], strange, *records[victim + 1 :]])


def _padded(content: bytes) -> bytes:
    """Return content behind its size, which has a byte more than it needs."""
    size = varint(len(content))
    return size[:-1] + bytes([size[-1] | 0x80]) + b"\0" + content


_DAMAGES: Final[Sequence[Callable[[bytes, list[bytes], random.Random], bytes]]] = (
    *(_flipped,) * 12,
    *(_flipped_at_an_end,) * 3,
    *(_with_another_record,) * 8,
    _cut,
)
