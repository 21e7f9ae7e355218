"""Messages of every API and version, made from a seed: valid in form, with contents that no client sends."""

from __future__ import annotations

import gzip
import struct
import uuid
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from typing import Any, Final, get_args, get_origin

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.record_batch import build_batch
from dualwrite.broker_emulator.messages.schemas import request_schema
from tests.emulator.hostile.requests import FIRST_PRODUCER_ID, SERVED, frame, without_none

Maker = Callable[[Random], Any]

NAMES: Final = (
    *("t", "t", "t", "x"),
    *("g", "p", "", ".", "__consumer_offsets", "__transaction_state", "__share_group_state", "n/a", "\0", "€"),
)
"""The first four exist."""
_PATTERNS: Final = ("(a+)+!", "(t|x)*", ".*", "[", "\\Qt\\E", "(?i:T)", "x{1000}{1000}")
_EDGES: Final = (-2, -1, 0, 1, 2, 3, 5, FIRST_PRODUCER_ID, FIRST_PRODUCER_ID + 1)
_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32, "timedelta_i64": 64}
_UNSIGNED_BITS: Final = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
_MOST_REPEATED_BYTES: Final = 1 << 20
_SELDOM: Final = 0.01
_BOMB_BYTES: Final = 64 << 20


def random_frame(random: Random) -> bytes:
    """Return a frame that decodes."""
    key, version = random.choice(SERVED)
    kind: Any = request_schema(key, version)
    message = random_message(random, kind)
    if random.random() < _SELDOM:
        message = _repeated(random, message)
    return frame(key, version, random.getrandbits(31), message)


def random_message(random: Random, kind: Any) -> Any:
    """Return a message of this type."""
    return _maker(kind)(random)


def _repeated(random: Random, message: Any) -> Any:
    """Repeat an element of one of the arrays, as often as a frame of a mebibyte allows."""
    arrays = [member.name for member in fields(message) if isinstance(getattr(message, member.name), tuple)]
    filled = [name for name in arrays if getattr(message, name)]
    if not filled:
        return message
    name = random.choice(filled)
    elements = getattr(message, name)
    bytes_each = max(len(repr(elements)) // 4, 4)
    return replace(message, **{name: elements * min(_MOST_REPEATED_BYTES // bytes_each, 99_000 // len(elements))})


@cache
def _maker(kind: Any) -> Maker:
    """Return the maker of messages of one type."""
    made = {member.name: _field_maker(member) for member in fields(kind)}
    return lambda random: kind(**{name: make(random) for name, make in made.items()})


def _field_maker(member: Any) -> Maker:
    kind, is_nullable = without_none(member.type)
    if get_origin(kind) is tuple:
        inner, _ = without_none(get_args(kind)[0])
        element = _value_maker(inner, member)
        return _nullable(lambda random: tuple(element(random) for _ in range(random.choice((0, 1, 1, 2)))), is_nullable)
    return _nullable(_value_maker(kind, member), is_nullable)


def _value_maker(kind: Any, member: Any) -> Maker:
    return _maker(kind) if _is_entity(kind) else _primitive(member.metadata["kafka_type"])


def _is_entity(kind: Any) -> bool:
    return is_dataclass(kind)


def _nullable(make: Maker, is_nullable: bool) -> Maker:
    if not is_nullable:
        return make
    return lambda random: None if random.random() < 0.2 else make(random)


def _primitive(kafka_type: str) -> Maker:
    match kafka_type:
        case "bool":
            return lambda random: random.random() < 0.5
        case "datetime_i64":  # this one and the next in responses only
            return lambda random: datetime.fromtimestamp(random.choice((0, 1_700_000_000)), tz=UTC)
        case "error_code":
            return lambda random: random.choice((ErrorCode.none, ErrorCode.not_leader_or_follower))
        case "string":
            return _text
        case "bytes":
            return lambda random: random.choice((b"", b"\0", random.randbytes(random.randrange(24)), b"\0\1" * 40))
        case "records":
            return random_records
        case "uuid":
            return lambda random: random.choice((None, uuid.UUID(int=random.randint(1, 3))))
        case "float64":
            return lambda random: random.choice((0.0, 1.0, -1.0, 1e300, float("inf"), float("nan")))
        case "uint8" | "uint16" | "uint32" | "uint64":
            return lambda random: random.getrandbits(random.choice((1, _UNSIGNED_BITS[kafka_type])))
        case "timedelta_i32" | "timedelta_i64":
            return lambda random: _duration(random, _BITS[kafka_type])
        case _:
            return lambda random: _integer(random, _BITS.get(kafka_type, 64))


def _integer(random: Random, bits: int) -> int:
    """Return an edge mostly. Numbers between ten and ten thousand are left out: so many partitions are legal."""
    largest = 2 ** (bits - 1) - 1
    value: int
    if random.random() < 0.8:
        value = random.choice(_EDGES)
    else:
        value = random.choice((largest, -largest - 1, random.randint(-largest - 1, largest)))
    return value if -largest - 1 <= value <= largest and not 10 < value < 10_000 else 1


def _duration(random: Random, bits: int) -> timedelta:
    """Return small ones too, or every request would wait for ever."""
    number = random.choice((0, 0, 1, 50, 6_000, _integer(random, bits)))
    return timedelta(milliseconds=max(min(number, 10**14), -(10**13)))


def _text(random: Random) -> str:
    chance = random.random()
    if chance < 0.9:
        return random.choice(NAMES)
    if chance < 0.95:
        return random.choice(_PATTERNS)
    if chance < 0.99:
        return "".join(chr(random.randrange(32, 0x300)) for _ in range(random.randrange(6)))
    return random.choice(("l" * 300, "l" * 32_767, "\r\nERROR forged"))


def random_records(random: Random) -> bytes:
    """Return batches: valid ones, damaged ones, ones whose claims are wrong, and bombs."""
    chance = random.random()
    if chance < 0.5:
        return _batch(random)
    if chance < 0.6:
        return _batch(random) + _batch(random)
    if chance < 0.9:
        return _with_another_header(random, _batch(random))
    if chance < 0.9 + _SELDOM:
        return _with_body(_batch(random), _bomb(), codec=1)
    return random.randbytes(random.randrange(100))


@cache
def _bomb() -> bytes:
    """Return few bytes that are many once they are decompressed."""
    return gzip.compress(bytes(_BOMB_BYTES), 9)


def _batch(random: Random) -> bytes:
    return build_batch(
        [(random.choice((None, b"", b"k", b"\0\0\0\1t")), random.choice((None, b"", b"v")))] * random.randint(1, 3),
        timestamp_ms=random.choice((1, -1, 1_700_000_000_000, 2**63 - 1)),
        producer_id=random.choice((-1, -1, FIRST_PRODUCER_ID, FIRST_PRODUCER_ID + 1)),
        producer_epoch=random.choice((-1, 0, 0, 1, 32767)),
        base_sequence=random.choice((-1, 0, 0, 1, 2**31 - 1)),
        transactional=random.random() < 0.3,
    )


_CHECKED_FROM: Final = 21
_HEADER_BYTES: Final = 61


def _with_another_header(random: Random, batch: bytes) -> bytes:
    """Change fields of the header, with a checksum that fits."""
    changed = bytearray(batch)
    for _ in range(random.randint(1, 3)):
        place = random.choice((8, 16, 22, 23, 27, 35, 43, 51, 53, 57, random.randrange(len(changed))))
        changed[place] = random.choice((0, 1, 2, 5, 7, 0x20, 0x40, 0x7F, 0x80, 0xFF))
    return _checked(bytes(changed))


def _with_body(batch: bytes, body: bytes, codec: int) -> bytes:
    header = bytearray(batch[:_HEADER_BYTES])
    header[8:12] = struct.pack(">i", _HEADER_BYTES - 12 + len(body))
    header[22] |= codec
    return _checked(bytes(header) + body)


def _checked(batch: bytes) -> bytes:
    return batch[:17] + struct.pack(">I", crc32c(batch[_CHECKED_FROM:])) + batch[_CHECKED_FROM:]
