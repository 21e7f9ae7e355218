"""Records are checked as Kafka checks them, in any mixture of shapes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker_emulator.log.record_walk import OffsetOrderError, RecordFormatError, check_records
from tests.emulator.log.bad_batches import record, sized, varint

_SIZES = st.sampled_from([0, 1, 5, 63, 64, 200])


def _encoded(index: int, size: int, delta: int = 0, *, has_header: bool = False) -> bytes:
    return record(
        index,
        key=sized(b"k" * (size % 7)),
        value=sized(b"v" * size),
        timestamp_delta=varint(delta),
        headers=varint(1) + sized(b"h") + sized(b"v") if has_header else b"\0",
    )


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(_SIZES, st.integers(1, 200), st.booleans()), min_size=1, max_size=6), st.data())
def test_any_shapes(runs: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    """Right records are accepted; a byte more or less, a record more or less, or an offset off is refused."""
    shapes = [(size, has_header) for size, times, has_header in runs for _ in range(times)]
    records = [_encoded(index, size, index % 300, has_header=has) for index, (size, has) in enumerate(shapes)]
    body, count = b"".join(records), len(records)
    check_records(body, count, in_order=True)
    for wrong, counted in ((body + b"\0", count), (body[:-1], count), (body, count - 1), (body, count + 1)):
        with pytest.raises(RecordFormatError):
            check_records(wrong, counted)
    victim = data.draw(st.integers(0, count - 1))
    size, has_header = shapes[victim]
    records[victim] = _encoded(victim + 1, size, victim % 300, has_header=has_header)
    with pytest.raises(OffsetOrderError):
        check_records(b"".join(records), count, in_order=True)
    check_records(b"".join(records), count)


def test_a_flipped_byte_is_judged_as_by_a_walk_record_by_record() -> None:
    """Records of one shape are checked together; damage to any of them has to be found all the same."""
    generator = random.Random(5)
    records = [_encoded(index, 20) for index in range(60)]
    for _ in range(2000):
        damaged = bytearray(b"".join(records))
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        together = _is_right(bytes(damaged), 60)
        assert together == _is_right_alone(bytes(damaged), 60)


def _is_right(body: bytes, count: int) -> bool:
    try:
        check_records(body, count)
    except RecordFormatError:
        return False
    return True


def _is_right_alone(body: bytes, count: int) -> bool:
    """Walk in steps too small for records to be checked together."""
    position = 0
    for _ in range(count):
        length, after = _varint_at(body, position)
        end = after + length
        if length < 0 or end > len(body) or not _is_right(body[position:end], 1):
            return False
        position = end
    return position == len(body)


def _varint_at(body: bytes, position: int) -> tuple[int, int]:
    unsigned = shift = 0
    while position < len(body):
        byte = body[position]
        position += 1
        unsigned |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return (unsigned >> 1) ^ -(unsigned & 1), position
