"""Which client this folder's cases are run with."""

from __future__ import annotations

import pytest

from tests.interop.both_brokers import broker
from tests.interop.confluent_kafka.client import Confluent
from tests.interop.foreign_client import ForeignClient

__all__ = ["broker", "client"]


@pytest.fixture
def client() -> ForeignClient:
    return Confluent()
