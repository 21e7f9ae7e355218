"""Settings, described and altered, by a real Apache Kafka and by the emulator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.configs.differences import DIFFERENCES
from dualwrite.broker_emulator.emulator import Emulator
from tests.interop.conftest import Broker
from tests.interop.raw_wire.config_cases import (
    BROKER,
    CASES,
    CLIENT_METRICS,
    EMULATED_DIFFERENTLY,
    GROUP,
    THE_NODE,
    THE_TOPIC,
    TOPIC,
)
from tests.interop.wire import Code, Wire, message, wait_for

STATIC: Final = 4

_names = itertools.count(1)

NOT_COMPARED: Final[Mapping[str, str]] = {
    "listeners": "addresses, and the emulator has no listener for controllers",
    "advertised.listeners": "addresses",
    "log.dirs": "a directory of the other broker",
}
"""Values that cannot be the same."""

DESCRIBED_DIFFERENTLY: Final[Mapping[str, str]] = {
    **{name: difference.reason for name, difference in DIFFERENCES.items()},
    "min.insync.replicas": "with the feature eligible.leader.replicas.version, which is not emulated, Kafka sets it "
    "for all brokers when the cluster is formed",
    "consumer.assignment.interval.ms": "as group.consumer.assignment.interval.ms",
}
"""Settings with another default, and so another value or other synonyms; why."""


def described(wire: Wire, resource_type: int, name: str) -> dict[str, Any]:
    resource = {"resource_type": resource_type, "resource_name": name, "configuration_keys": None}
    how = {"include_synonyms": True, "include_documentation": False}
    request = message("DescribeConfigs", 4, resources=[resource], **how)
    # a real broker hears of a new topic a moment after its controller has answered
    (result,) = wait_for(
        lambda: wire.call(request).results, lambda results: results[0].error_code != Code.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert result.error_code == 0, result
    return {config.name: config for config in result.configs}


def told(config: Any) -> dict[str, Any]:
    return {
        "value": config.value,
        "source": config.config_source,
        "type": config.config_type,
        "is read-only": config.read_only,
        "is sensitive": config.is_sensitive,
        "synonyms": [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms],
    }


@pytest.fixture(scope="module")
def real(apache_kafka: Broker) -> Iterator[Wire]:
    with Wire(apache_kafka.bootstrap_servers) as wire:
        yield wire


def emulate(given: Mapping[str, str]) -> Emulator:
    return Emulator(config=BrokerConfig.from_properties({"node.id": THE_NODE} | dict(given)))


@pytest.fixture(scope="module")
def emulated(real: Wire) -> Iterator[Wire]:
    """An emulator with every setting that the real broker was started with."""
    given = {
        name: config.value
        for name, config in described(real, BROKER, THE_NODE).items()
        if config.config_source == STATIC and name not in NOT_COMPARED and not config.is_sensitive
    }
    with emulate(given) as emulator, Wire(emulator.bootstrap_servers) as wire:
        yield wire


def create(wire: Wire, **configs: str) -> tuple[str, Any]:
    name = f"configs-{next(_names)}"
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": rows}
    return name, wire.ask("CreateTopics", 7, topics=[topic], timeout_ms=10_000, validate_only=False).topics[0]


@pytest.mark.parametrize(
    ("resource_type", "name"),
    [(TOPIC, THE_TOPIC), (BROKER, THE_NODE), (BROKER, ""), (GROUP, "g"), (CLIENT_METRICS, "s")],
    ids=["topic", "broker", "all brokers", "group", "client metrics"],
)
def test_settings_are_described_as_by_apache_kafka(real: Wire, emulated: Wire, resource_type: int, name: str) -> None:
    own = {"retention_ms": "5000", "cleanup_policy": "compact,delete"}
    of_real, of_emulated = (
        described(wire, resource_type, create(wire, **own)[0] if name == THE_TOPIC else name)
        for wire in (real, emulated)
    )
    assert of_real.keys() - DESCRIBED_DIFFERENTLY.keys() == of_emulated.keys() - DESCRIBED_DIFFERENTLY.keys()
    for key in of_real.keys() & of_emulated.keys():
        theirs, ours = told(of_real[key]), told(of_emulated[key])
        if key in NOT_COMPARED or key in DESCRIBED_DIFFERENTLY:
            for field in ("value", "source", "synonyms"):
                theirs.pop(field), ours.pop(field)
        assert ours == theirs, key


def test_listed_differences_between_releases_are_real(real: Wire, emulated: Wire) -> None:
    found = set()
    for resource_type, name in ((TOPIC, THE_TOPIC), (BROKER, THE_NODE), (GROUP, "g")):
        of_real, of_emulated = (
            described(wire, resource_type, create(wire)[0] if name == THE_TOPIC else name) for wire in (real, emulated)
        )
        found |= {key for key in of_real if told(of_real[key]) != told(of_emulated[key])}
    by_value_only = {name for name, difference in DIFFERENCES.items() if difference.default is not None}
    assert found - NOT_COMPARED.keys() <= DESCRIBED_DIFFERENTLY.keys()
    assert by_value_only <= found, "it is described as by Apache Kafka, so that nothing differs"


def test_a_created_topic_is_answered_with_its_settings(real: Wire, emulated: Wire) -> None:
    of_real, of_emulated = (create(wire, retention_ms="5000")[1].configs for wire in (real, emulated))
    assert [config.name for config in of_emulated] == [config.name for config in of_real]
    for theirs, ours in zip(of_real, of_emulated, strict=True):
        if ours.name not in DESCRIBED_DIFFERENTLY:
            assert ours == theirs


def test_the_settings_of_altered_resources_are_described_as_by_apache_kafka(real: Wire, emulated: Wire) -> None:
    changes = {
        CLIENT_METRICS: {"interval.ms": "1000", "match": "client_id=a"},
        GROUP: {"consumer.session.timeout.ms": "46000", "streams.num.warmup.replicas": "3"},
    }
    for resource_type, configs in changes.items():
        name = f"altered-{next(_names)}"
        of_real, of_emulated = (described_after(wire, resource_type, name, configs) for wire in (real, emulated))
        assert of_real.keys() == of_emulated.keys()
        for key in of_real.keys() - DESCRIBED_DIFFERENTLY.keys():
            assert told(of_emulated[key]) == told(of_real[key])


def described_after(wire: Wire, resource_type: int, name: str, configs: Mapping[str, str]) -> dict[str, Any]:
    """Alter a resource, and return its settings."""
    rows = [{"name": key, "value": value, "config_operation": 0} for key, value in configs.items()]
    resource = {"resource_type": resource_type, "resource_name": name, "configs": rows}
    answer = wire.ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
    assert answer.responses[0].error_code == 0, answer
    key, value = next(iter(configs.items()))
    return wait_for(lambda: described(wire, resource_type, name), lambda found: bool(found[key].value == value))


def answer_to(wire: Wire, topic: str, case_name: str) -> tuple[int, str | None]:
    case = CASES[case_name]
    api = "IncrementalAlterConfigs" if case.is_incremental else "AlterConfigs"
    changes = [
        {"name": key, "value": value, **({"config_operation": operation} if case.is_incremental else {})}
        for key, operation, value in case.changes
    ]
    name = topic if case.name == THE_TOPIC else case.name
    resource = {"resource_type": case.resource_type, "resource_name": name, "configs": changes}
    answer = wire.ask(api, 1, resources=[resource], validate_only=True)
    (row,) = answer.responses
    return row.error_code, row.error_message


def test_alterations_are_answered_by_apache_kafka(real: Wire) -> None:
    topic, _ = create(real)
    answers = {name: answer_to(real, topic, name) for name in CASES}
    assert answers == {name: (case.error, case.message) for name, case in CASES.items()}


def test_alterations_are_answered_by_the_emulator() -> None:
    expected = {
        name: EMULATED_DIFFERENTLY[name][:2] if name in EMULATED_DIFFERENTLY else (case.error, case.message)
        for name, case in CASES.items()
    }
    with emulate({}) as emulator, Wire(emulator.bootstrap_servers) as wire:
        topic, _ = create(wire)
        answers = {name: answer_to(wire, topic, name) for name in CASES}
    assert answers == expected


def test_a_type_requested_twice_is_listed_once(wire: Wire) -> None:
    def listed(*types: int) -> list[tuple[int, str]]:
        answer = wire.ask("ListConfigResources", 1, resource_types=[*types])
        return sorted((each.resource_type, each.resource_name) for each in answer.config_resources)

    create(wire)
    assert listed(TOPIC, TOPIC) == listed(TOPIC) != []
    assert listed(BROKER, TOPIC, BROKER) == sorted({*listed(BROKER), *listed(TOPIC)})
