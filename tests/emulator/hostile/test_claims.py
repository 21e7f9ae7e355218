"""A length that claims more than there is costs nothing, wherever it stands."""

from __future__ import annotations

import resource
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from crc32c import crc32c

from dualwrite.broker_emulator import BrokerConfig
from dualwrite.broker_emulator.api.registry import APIS
from dualwrite.broker_emulator.messages.request_bounds import bounds_check
from dualwrite.broker_emulator.messages.schemas import request_schema
from tests.emulator.api.raw_client import KEYS, RawClient, plain_batch
from tests.emulator.hostile.requests import LENGTHS, SERVED, sized
from tests.emulator.hostile.victim import Victim

ENDS = [
    pytest.param(api.key, version, marks=[pytest.mark.proof] if version != api.max_version else [])
    for api in APIS.values()
    for version in sorted({api.min_version, api.max_version})
]
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with Victim() as attacked:
        yield attacked


def memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def header(key: int, version: int) -> bytes:
    kind: Any = request_schema(key, version)
    return struct.pack(">hhih", key, version, 1, -1) + (b"\0" if kind.__header_schema__.__flexible__ else b"")


@pytest.mark.parametrize(("key", "version"), ENDS)
def test_every_length_that_can_be_claimed(victim: Victim, key: int, version: int) -> None:
    """A length is put at every place of two requests: one of all zeros, one of all ones."""
    before = memory_bytes()
    for filler in (b"\0", b"\1"):
        for place in range(16):
            for length in LENGTHS[:4]:
                victim.attack(sized(header(key, version) + filler * place + length + filler * 40))
    victim.check()
    assert memory_bytes() - before < 64 * MEBIBYTE


def test_every_request_with_an_array_is_checked() -> None:
    for key, version in SERVED:
        kind: Any = request_schema(key, version)
        has_arrays = "tuple" in " ".join(str(member.type) for member in kind.__dataclass_fields__.values())
        assert (bounds_check(kind) is not None) == has_arrays, (key, version)


def topics_bomb(count: int) -> bytes:
    """Metadata v9 for many topics of an empty name: three bytes each."""
    varint, left = b"", count + 1
    while left > 0x7F:
        varint += bytes((left & 0x7F | 0x80,))
        left >>= 7
    return sized(header(KEYS["metadata"], 9) + varint + bytes((left,)) + b"\1\0" * count + b"\1\0\0\0\0")


def test_more_elements_than_allowed_are_not_decoded() -> None:
    with Victim() as victim:
        before = memory_bytes()
        for _ in range(5):
            assert victim.attack(topics_bomb(1_000_000)) == []
        victim.check()
        assert memory_bytes() - before < 32 * MEBIBYTE  # the frames themselves
        assert "more elements than max.request.elements allows" in victim.reasons[-1]


def test_the_limit_of_elements_can_be_set() -> None:
    with Victim(BrokerConfig(max_request_elements=10)) as victim:
        assert victim.attack(topics_bomb(10)) == [1]
        assert victim.attack(topics_bomb(11)) == []


@pytest.mark.parametrize("count", [2, 10, 1_000_000, 2**31 - 1])
def test_a_batch_of_more_records_than_bytes(victim: Victim, count: int) -> None:
    """Each would otherwise move the log on by that many offsets."""
    batch = bytearray(plain_batch(b"1"))
    struct.pack_into(">i", batch, 23, count - 1)  # last offset delta
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    before = victim.emulator.log("x").log_end_offset
    with RawClient(victim.emulator.bootstrap_servers) as client:
        assert client.produce("x", bytes(batch)).error_code == 87
    assert victim.emulator.log("x").log_end_offset == before
