"""Real brokers' proof about a prepared transaction, and its records as they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.interop.wire import wait_for
from tests.producer.log_cases import LogCases, LogWorld

from .clusters import Cluster
from .conftest import NewName

SHORT_TIMEOUT_MS: Final = 3_000


class World(LogWorld):
    """A topic of a real broker, and ids that no other test has."""

    def __init__(self, cluster: Cluster, face: str, name: str) -> None:
        super().__init__(cluster.bootstrap_servers, face, name)
        self.cluster = cluster
        self.used: set[str] = set()
        self._timeout: dict[str, Any] = {}
        self.create_topic(name, 2)

    def id_of(self, name: str) -> str:
        return f"{self.topic}-{name}"

    def settings(self, name: str, **settings: Any) -> dict[str, Any]:
        self.used.add(self.id_of(name))
        return super().settings(name, **self._timeout | settings)

    def settle(self) -> None:
        for transactional_id in self.used:
            wait_for(lambda: self.cluster.describe(transactional_id).state, lambda it: not it.startswith("Prepare"))  # noqa: B023

    def time_out_soon(self) -> None:
        self._timeout = {"transaction_timeout_ms": SHORT_TIMEOUT_MS}

    def abort_by_timeout(self) -> None:
        self.cluster.wait_for_state(self.id_of("tid"), "CompleteAbort")
        self._timeout = {}


@pytest.fixture
def broker(cluster: Cluster, face: str, new_name: NewName) -> Iterator[World]:
    made = World(cluster, face, new_name("log"))
    yield made
    made.close()


@pytest.fixture
def bounded(broker: World) -> World:
    if not broker.cluster.is_bounded:
        pytest.skip("a prepared transaction has no timeout here")
    return broker


class TestLog(LogCases):
    """On each tier, with both producers."""
