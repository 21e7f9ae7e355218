"""Valid requests of every API and version, with contents that no client sends; and ways to damage them."""

from __future__ import annotations

import io
import struct
import uuid
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from hypothesis import strategies as st
from kio.serial import entity_writer

from dualwrite.broker_emulator.api.message_schemas import request_schema
from dualwrite.broker_emulator.api.registry import APIS
from dualwrite.broker_emulator.log.record_batch import build_batch

SERVED = [(api.key, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]
FIRST_PRODUCER_ID = 1_700_000_000_000_000
"""The first one that an emulator on a VirtualClock hands out."""

_INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32, "timedelta_i64": 64}
_NAMES = ("t", "x", "g", "", ".", "__consumer_offsets", "__transaction_state", "n/a", "\0", "\u20ac", "l" * 300)
_TEXTS = st.one_of(st.sampled_from(_NAMES), st.text(max_size=8))


def _batch(producer_id: int, epoch: int, sequence: int, count: int, *, transactional: bool) -> bytes:
    return build_batch(
        [(None, b"v")] * count,
        timestamp_ms=1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


_BATCHES = st.builds(
    _batch,
    st.sampled_from((-1, 0, FIRST_PRODUCER_ID, FIRST_PRODUCER_ID + 1)),
    st.sampled_from((-1, 0, 1, 32767)),
    st.sampled_from((-1, 0, 1, 2**31 - 1)),
    st.integers(1, 3),
    transactional=st.booleans(),
)


def _damaged(data: bytes, place: int, value: int) -> bytes:
    place %= len(data)
    return data[:place] + bytes((value,)) + data[place + 1 :]


_RECORDS = st.one_of(
    _BATCHES,
    st.builds(lambda first, second: first + second, _BATCHES, _BATCHES),
    st.builds(_damaged, _BATCHES, st.integers(0, 80), st.integers(0, 255)),
    st.binary(max_size=80),
)


def _integers(bits: int) -> st.SearchStrategy[int]:
    largest = 2 ** (bits - 1) - 1
    edges = [value for value in (-2, -1, 0, 1, 2, 3, 5, 1000, FIRST_PRODUCER_ID) if value <= largest]
    return st.one_of(st.sampled_from([*edges, largest, -largest - 1]), st.integers(-largest - 1, largest))


@cache
def _primitive(kafka_type: str) -> st.SearchStrategy[Any]:
    match kafka_type:
        case "bool":
            return st.booleans()
        case "string":
            return _TEXTS
        case "bytes":
            return st.binary(max_size=20)
        case "records":
            return _RECORDS
        case "uuid":
            return st.one_of(st.none(), st.builds(uuid.UUID, int=st.integers(1, 3)))
        case "float64":
            return st.floats()
        case "uint16":
            return st.integers(0, 2**16 - 1)
        case "timedelta_i32" | "timedelta_i64":
            # small ones too, or everything would wait for ever
            number = st.one_of(st.sampled_from((0, 0, 1)), _integers(_INTEGER_BITS[kafka_type]))
            return st.builds(lambda value: timedelta(milliseconds=max(min(value, 10**14), -(10**13))), number)
        case _:
            return _integers(_INTEGER_BITS[kafka_type])


@cache
def entities(kind: Any) -> st.SearchStrategy[Any]:
    """Messages of one type."""
    return st.builds(kind, **{member.name: _field(member) for member in fields(kind)})


def _is_entity(kind: Any) -> bool:
    return is_dataclass(kind)


def _field(member: Any) -> st.SearchStrategy[Any]:
    kind, is_nullable = _without_none(member.type)
    if get_origin(kind) is tuple:
        inner, _ = _without_none(get_args(kind)[0])
        element = entities(inner) if _is_entity(inner) else _primitive(member.metadata["kafka_type"])
        made: st.SearchStrategy[Any] = st.lists(element, max_size=3).map(tuple)
    elif _is_entity(kind):
        made = entities(kind)
    else:
        made = _primitive(member.metadata["kafka_type"])
    return st.one_of(made, st.none()) if is_nullable else made


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (UnionType, Union):
        return kind, False
    return next(argument for argument in get_args(kind) if argument is not NoneType), True


def frame(key: int, version: int, correlation_id: int, message: Any) -> bytes:
    """The whole request frame."""
    buffer = io.BytesIO()
    buffer.write(struct.pack(">hhih", key, version, correlation_id, 4) + b"fuzz")
    kind: Any = type(message)
    if kind.__header_schema__.__flexible__:
        buffer.write(b"\0")
    entity_writer(kind)(buffer, message)
    return sized(buffer.getvalue())


def sized(content: bytes) -> bytes:
    """A frame of this content."""
    return struct.pack(">i", len(content)) + content


@st.composite
def valid_frames(draw: st.DrawFn) -> bytes:
    """A frame that decodes."""
    key, version = draw(st.sampled_from(SERVED))
    kind: Any = request_schema(key, version)
    return frame(key, version, draw(st.integers(0, 2**31 - 1)), draw(entities(kind)))


LENGTHS = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x80\x00\x00\x00",
    b"\x00\x00\x00\x00",
    b"\xff\xff",
    b"\x00",
)
"""Lengths that are too large, or negative."""


@st.composite
def damaged_frames(draw: st.DrawFn) -> bytes:
    """A frame of the right size whose content was valid once."""
    content = draw(valid_frames())[4:]
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        inserted = draw(st.one_of(st.sampled_from(LENGTHS), st.binary(min_size=1, max_size=4)))
        replaced = draw(st.sampled_from((0, 1, len(inserted), 8)))
        content = content[:place] + inserted + content[place + replaced :]
    return sized(content)
