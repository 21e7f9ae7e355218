"""The bytes in which the records of a block are stored."""

from __future__ import annotations

import os
import zlib

import pytest

from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.record_block import decode, encode


def contents(record: BufferedRecord) -> tuple[object, ...]:
    return record.topic, record.value, record.key, record.headers, record.partition, record.timestamp_ms


RECORDS = (
    BufferedRecord("orders", b"value", b"key", [], None, 1_700_000_000_000),
    BufferedRecord("orders", None, None, [("null", None), ("empty", b""), ("twice", b"1"), ("twice", b"2")], 0, 0),
    BufferedRecord("Örtchen", b"", b"", [("ключ", bytes(range(256)))], 2**31 - 1, 2**62),
    BufferedRecord("large", b"x" * 70_000, b"k" * 127, [], 127, 127),
    BufferedRecord("edges", b"x" * 126, b"k" * 128, [], 126, 128),
)


@pytest.mark.parametrize("records", [(), RECORDS[:1], RECORDS], ids=["none", "one", "all"])
def test_records_are_read_as_they_were_written(records: tuple[BufferedRecord, ...]) -> None:
    block = decode(encode(records, "consistent_random"))
    assert block.partitioner == "consistent_random"
    assert [contents(record) for record in block.records] == [contents(record) for record in records]


def test_equal_records_make_different_blocks() -> None:
    assert encode(RECORDS, "") != encode(RECORDS, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork()")
def test_a_forked_child_makes_other_blocks() -> None:
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        os.write(sender, encode((), ""))
        os._exit(0)
    of_parent = encode((), "")
    of_child = os.read(receiver, len(of_parent))
    assert os.waitpid(child, 0)[1] == 0
    assert decode(of_child) == decode(of_parent)
    assert of_child != of_parent


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:20] + b"\0" + b[21:], lambda b: b"", lambda b: b"1"])
def test_damaged_bytes_are_refused(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(ValueError, match="checksum"):
        decode(damage(encode(RECORDS, "")))


def test_a_later_version_is_refused_by_name() -> None:
    content = b"\2" + encode(RECORDS, "")[1:-4]
    with pytest.raises(ValueError, match="version 2"):
        decode(content + zlib.crc32(content).to_bytes(4, "big"))
