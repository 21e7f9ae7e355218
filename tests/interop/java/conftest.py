"""Kafka's tools, in one JVM for all cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.both_brokers import broker
from tests.interop.conftest import Broker
from tests.interop.java.client import JavaTools, KafkaScripts
from tests.support.unavailable import skip

__all__ = ["broker", "java", "scripts"]


@pytest.fixture(scope="session")
def java() -> Iterator[JavaTools]:
    try:
        tools = JavaTools()
    except ServerUnavailableError as error:
        skip(error)
    yield tools
    tools.close()


@pytest.fixture
def scripts(broker: Broker, java: JavaTools) -> KafkaScripts:
    return KafkaScripts(java, broker.bootstrap_servers)
