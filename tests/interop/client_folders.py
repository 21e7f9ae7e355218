"""The folders of foreign clients: each folder's cases, and its client.

A case is a test; it is named `file/test`, without the words `test_`: `transactions/commit_and_abort`.
`known_failures.py` lists those that fail, with their brokers and reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent


class On(StrEnum):
    """The brokers of the report card, by the names of their columns."""

    EMULATOR = "emulator"
    APACHE_KAFKA = "Apache Kafka"


class Fault(StrEnum):
    """The side at fault for a failed case."""

    CLIENT = "the client's"
    EMULATOR = "the emulator's"
    APACHE_KAFKA = "Apache Kafka's"


BROKER_FIXTURES: Final[Mapping[str, On]] = {"emulated_kafka": On.EMULATOR, "apache_kafka": On.APACHE_KAFKA}
"""The column of each fixture."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """A case that fails, with the broker, the fault and the reason, and a link if others have reported it."""

    on: tuple[On, ...]
    fault: Fault
    reason: str
    link: str = ""


def _distribution(name: str) -> Callable[[], str]:
    return lambda: version(name)


def _pinned_in(module: str, constant: str) -> Callable[[], str]:
    return lambda: str(getattr(import_module(module), constant))


def _librdkafka() -> str:
    return f"{version('confluent-kafka')} (librdkafka {import_module('confluent_kafka').libversion()[0]})"


@dataclass(frozen=True, slots=True)
class ClientFolder:
    """One client, with where its cases are."""

    folder: str
    name: str
    version: Callable[[], str]


CLIENT_FOLDERS: Final = (
    ClientFolder("confluent_kafka", "confluent-kafka", _librdkafka),
    ClientFolder("aiokafka", "aiokafka", _distribution("aiokafka")),
    ClientFolder("kafka_python", "kafka-python", _distribution("kafka-python")),
    ClientFolder("kafkajs", "kafkajs", _pinned_in("tests.interop.kafkajs.client", "VERSION")),
    ClientFolder("franz_go", "franz-go", _pinned_in("tests.interop.franz_go.client", "VERSION")),
    ClientFolder("sarama", "sarama", _pinned_in("tests.interop.sarama.client", "VERSION")),
    ClientFolder("kafka_go", "kafka-go", _pinned_in("tests.interop.kafka_go.client", "VERSION")),
    ClientFolder("rust_rdkafka", "rust-rdkafka", _pinned_in("tests.interop.rust_rdkafka.client", "VERSION")),
    ClientFolder("java", "Java client and tools", _pinned_in("tests.interop.java.client", "VERSION")),
    ClientFolder("spark", "Spark's connector", _pinned_in("tests.support.servers.spark_kafka", "CONNECTOR_VERSION")),
)


RAW_WIRE: Final = ClientFolder("raw_wire", "requests by hand", _distribution("kafka-python"))
"""No client: our own requests, with every response compared. It has a row on the card."""

ALL_FOLDERS: Final = (*CLIENT_FOLDERS, RAW_WIRE)

_PREFIX: Final = "tests/interop/"
_BY_FOLDER: Final = {client.folder: client for client in ALL_FOLDERS}


def folder_of(item: pytest.Item) -> ClientFolder | None:
    """The client's folder that a test is in. Asked for every test of the suite, so it takes no path apart."""
    if not item.nodeid.startswith(_PREFIX):
        return None
    return _BY_FOLDER.get(item.nodeid[len(_PREFIX) :].partition("/")[0])


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
