"""Transactional producers of two makes behind one face, for tests that disturb the cluster under them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, Protocol

# imported as untyped: their types do not pass mypy's strict mode
aiokafka: Any = import_module("aiokafka")
aiokafka_errors: Any = import_module("aiokafka.errors")
confluent_kafka: Any = import_module("confluent_kafka")

TIMEOUT_S = 30.0
TOPIC = "many"


class HasToAbortError(Exception):
    """The client says that only another transaction can be committed."""


class Client(Protocol):
    """The calls that all of them offer. Every call may raise HasToAbortError, except for `abort`."""

    def begin(self) -> None: ...
    def send(self, value: bytes, partition: int) -> None: ...
    def flush(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class ConfluentClient:
    """librdkafka."""

    def __init__(self, servers: str) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": "x",
                "linger.ms": 0,
                "retry.backoff.ms": 10,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "metadata.recovery.strategy": "none",
                "topic.metadata.refresh.fast.interval.ms": 10,
                "log_level": 0,
            }
        )
        self._run(lambda: self._producer.init_transactions(TIMEOUT_S))

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, value: bytes, partition: int) -> None:
        self._run(lambda: self._producer.produce(TOPIC, value, partition=partition))

    def flush(self) -> None:
        assert self._producer.flush(TIMEOUT_S) == 0

    def commit(self) -> None:
        self._run(lambda: self._producer.commit_transaction(TIMEOUT_S))

    def abort(self) -> None:
        self._run(lambda: self._producer.abort_transaction(TIMEOUT_S))

    def close(self) -> None:
        """Nothing holds it."""

    def _run(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
            except confluent_kafka.KafkaException as error:
                (reason,) = error.args
                if reason.txn_requires_abort():
                    raise HasToAbortError from error
                if not reason.retriable():
                    raise
            else:
                return


class AiokafkaClient:
    """aiokafka, in a loop that runs only during a call."""

    def __init__(self, servers: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._producer = self._loop.run_until_complete(self._start(servers))

    @staticmethod
    async def _start(servers: str) -> Any:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers, transactional_id="x", retry_backoff_ms=10, request_timeout_ms=10_000
        )
        await producer.start()
        return producer

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, value: bytes, partition: int) -> None:
        self._run(self._producer.send(TOPIC, value, partition=partition))

    def flush(self) -> None:
        self._run(self._producer.flush())

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            self._loop.run_until_complete(asyncio.wait_for(work, TIMEOUT_S))
        except aiokafka_errors.KafkaError as error:
            raise HasToAbortError from error


CLIENTS: dict[str, Callable[[str], Client]] = {"librdkafka": ConfluentClient, "aiokafka": AiokafkaClient}
