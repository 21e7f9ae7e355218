"""Which client this folder's cases are run with."""

from __future__ import annotations

import pytest

from tests.interop.both_brokers import broker
from tests.interop.foreign_client import ForeignClient
from tests.interop.kafka_python.client import KafkaPython

__all__ = ["broker", "client"]

CLIENTS = (KafkaPython(), KafkaPython((2, 5)))


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> ForeignClient:
    """The client in the newest common protocol, and in that of an older release."""
    chosen: ForeignClient = request.param
    return chosen
