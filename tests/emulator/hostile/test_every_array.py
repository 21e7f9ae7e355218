"""Every array of every API that is served, made long by one legal request: others are served in between.

The requests are made from the schemas, so that no API and no array can be forgotten.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, NamedTuple, get_args, get_origin
from uuid import UUID

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.api.registry import APIS
from dualwrite.broker_emulator.messages.request_bounds import without_none
from dualwrite.broker_emulator.messages.schemas import request_schema
from tests.emulator.hostile.requests import frame
from tests.emulator.hostile.turns import LONGEST, watched

MANY = 18_000
"""A loop that takes four steps for each element in one piece is found."""

Path = tuple[str, ...]


class Case(NamedTuple):
    """An array of a request, by the names of the fields that lead to it."""

    key: int
    version: int
    path: Path


def _element(member: Any) -> Any:
    """Return the type of an array's elements; None if the field is no array."""
    kind = without_none(member.type)
    return without_none(get_args(kind)[0]) if get_origin(kind) is tuple else None


def _arrays(kind: Any, around: Path = ()) -> Iterator[Path]:
    for member in fields(kind):
        path = (*around, member.name)
        element = _element(member)
        if element is not None:
            yield path
        inner = element or without_none(member.type)
        if is_dataclass(inner):
            yield from _arrays(inner, path)


CASES = [
    Case(api.key, version, path)
    for api in APIS.values()
    for version in sorted({api.min_version, api.max_version})
    for path in _arrays(request_schema(api.key, version))
]

_VALUES: Mapping[str, Any] = {
    "bool": False,
    "bytes": b"",
    "records": b"",
    "float64": 0.0,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
}


def _primitive(kafka_type: Any, number: int) -> Any:
    match kafka_type:
        case "string":
            return f"n{number}"
        case "uuid":
            return UUID(int=number + 1)
        case "int8" | "uint8":
            return number % 100
    return _VALUES.get(kafka_type, number)


def _made(kind: Any, path: Path, number: int = 0) -> Any:
    """Return an entity whose array at `path` is long; those around it have one element, and the others none."""
    values: dict[str, Any] = {}
    for member in fields(kind):
        element, inner = _element(member), without_none(member.type)
        name, rest = (path[0], path[1:]) if path else ("", ())
        if element is not None:
            count = 0 if member.name != name else 1 if rest else MANY
            primitive = member.metadata.get("kafka_type")
            values[member.name] = tuple(
                _made(element, rest, index) if is_dataclass(element) else _primitive(primitive, index)
                for index in range(count)
            )
        elif is_dataclass(inner):
            values[member.name] = _made(inner, rest if member.name == name else ())
        else:
            # a Produce with acks=0 is not answered
            primitive = _primitive(member.metadata["kafka_type"], number)
            values[member.name] = 1 if member.name == "acks" else primitive
    return kind(**values)


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
    with Emulator(config=config, topics={"n0": 3}) as broker:
        yield broker


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{APIS[case.key].schema_name}-v{case.version}-{'.'.join(case.path)}"
)
def test_other_clients_are_served_in_between(emulator: Emulator, case: Case) -> None:
    sent = frame(case.key, case.version, 1, _made(request_schema(case.key, case.version), case.path))
    host, _, port = emulator.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as raw, watched(emulator) as turns:
        raw.sendall(sent)
        size = raw.recv(4, socket.MSG_WAITALL)
        if size:  # some of these requests end their connection
            (length,) = struct.unpack(">i", size)
            raw.recv(length, socket.MSG_WAITALL)
    assert turns.longest < LONGEST
