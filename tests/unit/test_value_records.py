"""Records that have only a value, encoded all at once, decoded by another library and compared with its builder."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from dualwrite.client.records import batch_buffers, value_batch
from dualwrite.client.records.batches import BuiltBatch, Header, LibraryBuilder, restamp, stamp_and_build
from dualwrite.client.records.value_batch import ValueBatch, records_factory
from dualwrite.client.varints import varint

NOW_MS = 1_700_000_000_000

Given = tuple[int, bytes | None, bytes | None, list[Header]]


def read(data: BuiltBatch) -> Any:
    batch = DefaultRecordBatch(bytes(data))
    assert batch.validate_crc()
    return batch


def comparable(data: BuiltBatch) -> bytes:
    """Return a batch without the leader epoch, which the broker writes, and without the checksum, which is tested."""
    read(data)
    copied = bytearray(data)
    struct.pack_into(">iBI", copied, 12, -1, 2, 0)
    return bytes(copied)


def filled(into: ValueBatch | LibraryBuilder, records: list[Given]) -> int:
    """Append until one is refused; return how many were accepted."""
    for place, (time_ms, key, value, headers) in enumerate(records):
        if into.append(place, time_ms, key, value, headers) is None:
            return place
    return len(records)


values = st.one_of(st.binary(max_size=70), st.sampled_from([0, 50, 120, 130, 8180, 8195, 70_000]).map(bytes))
times = st.integers(0, 3).map(lambda late: NOW_MS + late) | st.sampled_from(
    [NOW_MS + 64, NOW_MS - 65, NOW_MS + 9000, 0]
)
plain: st.SearchStrategy[Any] = st.tuples(times, st.none(), values, st.just([]))
other = st.tuples(times, st.none() | st.binary(max_size=3), st.none() | values, st.sampled_from([[], [("h", b"1")]]))


@given(
    st.lists(plain, max_size=100) | st.lists(plain | other, max_size=40), st.integers(1, 5), st.integers(100, 90_000)
)
@example([(NOW_MS, None, bytes(50), [])] * 60, 4, 100_000)
@example([(NOW_MS + late, None, b"v", []) for late in range(80)], 1, 100_000)
def test_the_same_bytes_and_the_same_room_as_the_library_has(records: list[Given], times: int, room: int) -> None:
    records = records * times
    ours = ValueBatch(transactional=True, batch_size=room)
    theirs = LibraryBuilder(transactional=True, batch_size=room)
    accepted = filled(ours, records)
    assert accepted == filled(theirs, records)
    assert ours.size() == theirs.size()
    if accepted:
        assert comparable(stamp_and_build(ours, 7, 3, 11)) == comparable(stamp_and_build(theirs, 7, 3, 11))
        assert ours.size() == theirs.size(), "a batch that is sent again is as large as before"


@given(st.lists(values, min_size=1, max_size=300), st.integers(0, 5), st.integers(100, 90_000))
@example([b"x" * 93] * 100, 0, 1061)
@example([b"x" * 93] * 100, 0, 1081)
@example([bytes(5000), b"y"], 0, 1000)
@example([bytes(10)] * 9000, 0, 10_000_000)
def test_many_values_at_once_equal_one_by_one(given_values: list[bytes], before: int, room: int) -> None:
    records: list[Given] = [(NOW_MS, None, value, []) for value in [b"before"] * before + given_values]
    one_by_one = LibraryBuilder(transactional=False, batch_size=room)
    accepted = filled(one_by_one, records)
    for many in (
        ValueBatch(transactional=False, batch_size=room),
        LibraryBuilder(transactional=False, batch_size=room),
    ):
        first = filled(many, records[:before])
        assert first + (many.append_values(before, NOW_MS, given_values, 0) if first == before else 0) == accepted
    assert many.append_values(accepted, NOW_MS, given_values, len(given_values)) == 0


@pytest.mark.parametrize("last", [(b"k", b"v", []), (None, None, []), (None, b"v", [("h", None)])])
def test_values_stay_in_order_when_another_record_comes(last: tuple[bytes | None, bytes | None, list[Header]]) -> None:
    batch = ValueBatch(transactional=True, batch_size=10_000)
    assert batch.append_values(0, NOW_MS, [b"a", b"b"], 0) == 2
    assert batch.append(2, NOW_MS + 1, *last) is not None
    assert batch.append_values(3, NOW_MS + 2, [b"c", b"d"], 0) == 2
    found = [(record.key, record.value, record.timestamp - NOW_MS) for record in read(stamp_and_build(batch, 7, 3, 11))]
    assert found == [(None, b"a", 0), (None, b"b", 0), (last[0], last[1], 1), (None, b"c", 2), (None, b"d", 2)]


def test_two_loops_extend_the_known_offsets_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_batch, "_offset_deltas", [])
    first, second = (ValueBatch(transactional=True, batch_size=10_000) for _ in range(2))
    for batch in (first, second):
        assert filled(batch, [(NOW_MS, None, b"v", [])] * 20) == 20
    built: list[BuiltBatch] = []
    is_interrupted = iter([True])

    def interrupted(number: int) -> bytes:
        if number == 5 and next(is_interrupted, False):
            built.append(stamp_and_build(second, 7, 3, 11))
        return varint(number)

    monkeypatch.setattr(value_batch, "varint", interrupted)
    built.append(stamp_and_build(first, 7, 3, 11))
    assert len(built) == 2
    for data in built:
        assert [record.offset for record in read(data)] == list(range(20))
    assert value_batch._offset_deltas == [varint(offset) for offset in range(20)]


def test_only_large_values_wait_until_they_are_sent() -> None:
    new = records_factory(transactional=True, batch_size=1000)
    assert isinstance(new(None, bytes(1000), []), ValueBatch)
    others: list[tuple[bytes | None, bytes | None, list[Header]]] = [
        (b"", bytes(1000), []),
        (None, None, []),
        (None, bytes(1000), [("h", b"")]),
    ]
    for key, value, headers in others:
        assert isinstance(new(key, value, headers), LibraryBuilder)
    assert isinstance(new(None, b"small", []), LibraryBuilder)


# ---- memory -----------------------------------------------------------------------------------------------------


def built(letter: bytes) -> BuiltBatch:
    batch = ValueBatch(transactional=True, batch_size=10_000)
    batch.append_values(0, NOW_MS, [letter * 500] * 12, 0)
    return stamp_and_build(batch, 7, 3, 11)


def test_memory_is_used_again_only_when_nothing_refers_to_it() -> None:
    held = [built(letter) for letter in (b"a", b"b", b"c")]
    sent = memoryview(held.pop(0))  # as a transport holds it while it sends
    more = [built(letter) for letter in (b"d", b"e", b"f")]
    found = [{record.value[:1] for record in read(data)} for data in (sent, *held, *more)]
    assert found == [{b"a"}, {b"b"}, {b"c"}, {b"d"}, {b"e"}, {b"f"}]


def test_memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_buffers, "_kept", deque())
    for _ in range(3):
        assert len(read(built(b"a")).__iter__().__next__().value) == 500
    assert len(batch_buffers._kept) == 1


def test_a_shorter_batch_in_the_memory_of_a_longer_one_ends_where_it_ends() -> None:
    assert bytes(batch_buffers.joined([b"long", b"er"])) == b"longer"
    assert bytes(batch_buffers.joined([b"short"])) == b"short"


def test_a_batch_in_used_memory_can_be_restamped() -> None:
    data = built(b"a")
    restamp(data, 43, 0, 0)
    batch = read(data)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.is_transactional) == (43, 0, 0, True)
