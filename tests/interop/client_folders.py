"""The folders of foreign clients, and their cases.

A case is a test; it is named `file/test`, without the words `test_`: `transactions/commit_and_abort`.
`known_failures.py` lists those that fail, with their brokers and reasons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent


class On(StrEnum):
    """The brokers that the cases run on."""

    EMULATOR = "emulator"
    APACHE_KAFKA = "Apache Kafka"


class Fault(StrEnum):
    """The side at fault for a failed case."""

    CLIENT = "the client's"
    EMULATOR = "the emulator's"
    APACHE_KAFKA = "Apache Kafka's"


BROKER_FIXTURES: Final[Mapping[str, On]] = {"emulated_kafka": On.EMULATOR, "apache_kafka": On.APACHE_KAFKA}
"""The broker of each fixture."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """A case that fails, with the broker, the fault and the reason, and a link if others have reported it."""

    on: tuple[On, ...]
    fault: Fault
    reason: str
    link: str = ""


CLIENT_FOLDERS: Final = (
    "confluent_kafka",
    "aiokafka",
    "kafka_python",
    "kafkajs",
    "franz_go",
    "sarama",
    "kafka_go",
    "java",
    "spark",
)

_PREFIX: Final = "tests/interop/"


def folder_of(item: pytest.Item) -> str | None:
    """Return the client's folder that a test is in. Asked for every test of the suite, so it takes no path apart."""
    if not item.nodeid.startswith(_PREFIX):
        return None
    folder = item.nodeid[len(_PREFIX) :].partition("/")[0]
    return folder if folder in CLIENT_FOLDERS else None


def case_of(item: pytest.Item) -> str:
    """The name of a test as a case; its parameters are not part of it."""
    function = re.sub(r"\[.*", "", item.name).removeprefix("test_")
    return f"{item.path.stem.removeprefix('test_')}/{function}"


def broker_of(item: pytest.Item) -> On:
    """The broker of a test: the emulator unless a parameter or a fixture names another."""
    callspec = getattr(item, "callspec", None)
    values = () if callspec is None else tuple(callspec.params.values())
    chosen = [value for value in values if isinstance(value, str) and value.startswith(("emulated", "apache"))]
    asked = chosen or getattr(item, "fixturenames", [])
    return On.APACHE_KAFKA if any("apache_kafka" in name for name in asked) else On.EMULATOR
