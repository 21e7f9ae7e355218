"""Partitions of keys compared with other clients', one key at a time and by the column."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from dualwrite.client.records.key_columns import crc32_all, murmur2_all
from dualwrite.errors import InvalidRecordError
from dualwrite.partitioners import (
    NAMES,
    murmur2,
    murmur2_partition,
    name_of,
    partitioning,
    partitioning_named,
)

# of org.apache.kafka.common.utils.UtilsTest
JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "java"), JAVA_VECTORS.items())
def test_keys_hash_as_in_java(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0xFFFFFFFF
    assert murmur2_partition(key, 7) == (java & 0x7FFFFFFF) % 7


@given(st.binary(max_size=300))
def test_keys_hash_as_in_kafka_python(key: bytes) -> None:
    assert murmur2(key) == kafka_murmur2(key) & 0xFFFFFFFF


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_a_column_of_keys_hashes_as_each_of_them(keys: list[bytes]) -> None:
    offsets = np.cumsum([0, *map(len, keys)]).astype(np.int64)
    data = np.frombuffer(b"".join(keys), np.uint8)
    assert murmur2_all(offsets, data).tolist() == [murmur2(key) for key in keys]
    assert crc32_all(offsets, data).tolist() == [zlib.crc32(key) for key in keys]


def test_turns_are_taken_per_topic_and_producer() -> None:
    ask, other = partitioning("round_robin").by_record, partitioning("round_robin").by_record
    assert ask is not None
    assert other is not None
    assert [ask(topic, b"k", None, 3) for topic in ("a", "a", "b", "a", "a", "b")] == [0, 1, 0, 2, 0, 1]
    assert other("a", None, None, 3) == 0


def test_random_is_within_range() -> None:
    ask = partitioning("random").by_record
    assert ask is not None
    assert {ask("t", b"same", None, 3) for _ in range(200)} == {0, 1, 2}


@pytest.mark.parametrize("answer", [3, -1, None, "0", True, 1.0])
def test_an_answer_that_is_no_partition_is_refused(answer: object) -> None:
    ask = partitioning(lambda *_: answer).by_record  # type: ignore[arg-type]
    assert ask is not None
    with pytest.raises(InvalidRecordError, match="the partitions 0 to 2; the record was not sent"):
        ask("t", None, None, 3)


@pytest.mark.parametrize("setting", [*NAMES, max, zlib.crc32, st.SearchStrategy.map, type("Chooser", (), {})()])
def test_the_name_of_a_partitioner_stands_for_it(setting: Any) -> None:
    """In a process that has it; a function is also replaced by any other function, as where its code has moved."""
    for has in (setting, setting if isinstance(setting, str) else lambda *_: 0):
        named = partitioning_named(name_of(setting), has)
        assert [each is None for each in named[:2]] == [each is None for each in partitioning(setting)[:2]]


@pytest.mark.parametrize(("name", "says"), [("function shop:choose", "shop:choose"), ("murmur3", "not known")])
def test_a_partitioner_that_a_process_does_not_have(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        partitioning_named(name, "default")


def test_a_partitioner_that_fails_is_the_cause() -> None:
    ask = partitioning(lambda *_: 1 // 0).by_record
    assert ask is not None
    with pytest.raises(InvalidRecordError, match="the partitioner failed") as caught:
        ask("t", None, None, 3)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
