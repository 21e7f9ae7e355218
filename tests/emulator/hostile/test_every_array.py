"""Every array of every API that is served, made long by one legal request: others are served in between.

The requests are made from the schemas, so that no API and no array can be forgotten.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.api.registry import APIS
from dualwrite.broker_emulator.messages.request_bounds import without_none
from dualwrite.broker_emulator.messages.schemas import request_schema
from tests.emulator.hostile.requests import Path, element_of, filled, frame
from tests.emulator.hostile.turns import LONGEST, watched

MANY = 18_000
"""A loop that takes four steps for each element in one piece is found."""


class Case(NamedTuple):
    """An array of a request, by the names of the fields that lead to it."""

    key: int
    version: int
    path: Path


def _arrays(kind: Any, around: Path = ()) -> Iterator[Path]:
    for member in fields(kind):
        path = (*around, member.name)
        element = element_of(member)
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


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
    with Emulator(config=config, topics={"n0": 3}) as broker:
        yield broker


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{APIS[case.key].schema_name}-v{case.version}-{'.'.join(case.path)}"
)
def test_other_clients_are_served_in_between(emulator: Emulator, case: Case) -> None:
    def count(path: Path) -> int:
        return MANY if path == case.path else int(path == case.path[: len(path)])

    sent = frame(case.key, case.version, 1, filled(request_schema(case.key, case.version), count))
    host, _, port = emulator.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as raw, watched(emulator) as turns:
        raw.sendall(sent)
        size = raw.recv(4, socket.MSG_WAITALL)
        if size:  # some of these requests end their connection
            (length,) = struct.unpack(">i", size)
            raw.recv(length, socket.MSG_WAITALL)
    assert turns.longest < LONGEST
