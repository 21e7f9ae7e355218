"""Other people's clients in Python, for tests that run with each of them."""

from __future__ import annotations

from tests.interop.aiokafka.client import Aiokafka
from tests.interop.confluent_kafka.client import Confluent
from tests.interop.foreign_client import FencedError, ForeignClient, ForeignProducer
from tests.interop.kafka_python.client import KafkaPython

__all__ = ["CLIENTS", "Aiokafka", "Confluent", "FencedError", "ForeignClient", "ForeignProducer", "KafkaPython"]

CLIENTS: tuple[ForeignClient, ...] = (Confluent(), Aiokafka(), KafkaPython(), KafkaPython((2, 5)))
