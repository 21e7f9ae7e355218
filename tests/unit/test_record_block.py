"""The bytes in which the records of a block are stored."""

from __future__ import annotations

import os
import random
import zlib
from contextlib import suppress
from types import SimpleNamespace
from typing import Final

import pytest

from dualwrite.recipes.core import record_block
from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.record_block import decode, encode, token_of


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


def test_processes_of_one_snapshot_of_memory_differ_by_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def token_at(time_ns: int) -> str:
        monkeypatch.setattr(record_block, "_tokens", random.Random(1))
        monkeypatch.setattr(record_block, "time", SimpleNamespace(time_ns=lambda: time_ns))
        return token_of(encode((), ""))

    now_ns = 1_700_000_000_000_000_000
    assert token_at(now_ns) == token_at(now_ns), "the generator draws the same number"
    assert token_at(now_ns) != token_at(now_ns + 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork()")
def test_a_forked_child_makes_blocks_with_other_ids() -> None:
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


def sealed(content: bytes) -> bytes:
    return content + zlib.crc32(content).to_bytes(4, "big")


@pytest.mark.parametrize("version", [1, 3])
def test_another_version_is_refused_by_name(version: int) -> None:
    with pytest.raises(ValueError, match=f"has version {version}, which this version of dualwrite cannot read"):
        decode(sealed(bytes([version]) + encode(RECORDS, "")[1:-4]))


CONTENT: Final = b"\2" + bytes(8) + encode(RECORDS[:3], "name")[9:-4]
"""A block with a known token, without its checksum."""

FIRST: Final = 15 + len("name")
"""Where the first record begins: the length of its topic, its partition, its time, the lengths of key and value."""


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (CONTENT + b"1", "its 3 records end at byte"),
        (CONTENT[:-1], "its 3 records end at byte"),
        (CONTENT[:FIRST], "requires a buffer"),
        (CONTENT[:FIRST] + b"\xff\xff" + CONTENT[FIRST + 2 :], "codec can't decode"),
        (CONTENT[: FIRST + 2] + b"\xff\xff\xff\xfe" + CONTENT[FIRST + 6 :], "record 0 has a negative"),
        (CONTENT[: FIRST + 14] + b"\xff\xff\xff\xfe" + CONTENT[FIRST + 18 :], "record 0 has a negative"),
        (CONTENT[: FIRST + 18] + b"\x80\0\0\0" + CONTENT[FIRST + 22 :], "record 0 has a negative"),
        (CONTENT.replace(b"\xff\xff\xff\xffnull", b"\xff\xff\xff\xfenull"), "record 1 has a header of negative length"),
        (CONTENT.replace(b"orders", b"\xfforder"), "codec can't decode"),
    ],
)
def test_malformed_bytes_are_refused(content: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=f"{len(content) + 4} bytes are not a block of records: .*{why}"):
        decode(sealed(content))


def altered(content: bytes, chance: random.Random) -> bytes:
    """Return the bytes with up to four of them replaced by extreme or random ones, removed, or inserted."""
    at, size = chance.randrange(len(content)), chance.choice([1, 1, 2, 4])
    put = chance.choice([b"", b"\xff" * size, bytes(size), b"\x80" + bytes(size - 1), chance.randbytes(size)])
    return content[:at] + put + content[at + chance.choice([0, size, size]) :]


@pytest.mark.parametrize("seed", range(10))
def test_altered_bytes_are_read_only_if_a_block_may_have_them(seed: int) -> None:
    """A block that decodes encodes to the same bytes again; any other bytes raise ValueError."""
    chance = random.Random(seed)
    for _ in range(1_000):
        content = altered(CONTENT, chance)
        with suppress(ValueError):
            found = decode(sealed(content))
            assert encode(found.records, found.partitioner)[9:-4] == content[9:]
