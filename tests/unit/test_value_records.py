"""Full batches of values, decoded by another library."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kafka.record.default_records import DefaultRecordBatch

from dualwrite.client.records.batches import full_batch


def read(data: bytearray) -> Any:
    batch = DefaultRecordBatch(bytes(data))
    assert batch.validate_crc()
    return batch


@pytest.mark.parametrize("largest", [0, 1, 60, 63, 64, 200, 9000])
def test_every_value_is_in_one_batch_in_order(largest: int) -> None:
    chance = random.Random(largest)
    values = [chance.randbytes(chance.randint(0, largest)) for _ in range(1000)]
    room, first, found = 20_000, 0, []
    while first < len(values):
        built = full_batch(values, first, room, timestamp_ms=1234, transactional=True)
        built.set_producer_state(7, 3, first)
        assert built.size() <= room + 61
        batch = read(built.build())
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, first)
        assert batch.is_transactional
        records = list(batch)
        assert [record.offset for record in records] == list(range(built.record_count))
        assert {(record.timestamp, record.key, tuple(record.headers)) for record in records} == {(1234, None, ())}
        found += [record.value for record in records]
        first += built.record_count
    assert found == values


def test_as_much_as_there_is_room() -> None:
    values = [b"x" * 93] * 100  # 102 bytes each, up to the 64th
    assert full_batch(values, 0, 1000, timestamp_ms=0, transactional=False).record_count == 9
    assert full_batch(values, 0, 1020, timestamp_ms=0, transactional=False).record_count == 10
    assert full_batch(values, 95, 10_000, timestamp_ms=0, transactional=False).record_count == 5


def test_one_value_at_least() -> None:
    assert full_batch([b"x" * 5000, b"y"], 0, 1000, timestamp_ms=0, transactional=False).record_count == 1
