"""The same work for each client library: `python -m benchmarks.clients CLIENT WORKLOAD ...` prints one rate."""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class TransactionalClient(Protocol):
    """The part of a transactional producer that the workloads use."""

    def begin(self) -> None: ...
    def send(self, topic: str, value: bytes) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


class Dualwrite:
    def __init__(self, bootstrap_servers: str, transactional_id: str, **settings: object) -> None:
        from dualwrite.producer import Producer

        self._producer = Producer(bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, **settings)
        self._producer.init_transactions()
        self.begin = self._producer.begin_transaction
        self.send: Callable[[str, bytes], object] = self._producer.send
        self.commit = self._producer.commit_transaction
        self.close = self._producer.close


class DualwritePrepared(Dualwrite):
    """With two-phase commit: each transaction is prepared, then completed by the state it gave."""

    def __init__(self, bootstrap_servers: str, transactional_id: str) -> None:
        super().__init__(bootstrap_servers, transactional_id, transaction_two_phase_commit_enable=True)
        self.commit = self._prepare_and_complete

    def _prepare_and_complete(self) -> None:
        self._producer.complete_transaction(self._producer.prepare_transaction())


class Confluent:
    def __init__(self, bootstrap_servers: str, transactional_id: str) -> None:
        import confluent_kafka

        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap_servers, "transactional.id": transactional_id, "linger.ms": 0}
        )
        self._producer.init_transactions(30)
        self.begin = self._producer.begin_transaction
        self.commit = self._producer.commit_transaction

    def send(self, topic: str, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(topic, value)
                return
            except BufferError:
                self._producer.poll(0.01)

    def close(self) -> None:
        self._producer.flush()


class KafkaPython:
    def __init__(self, bootstrap_servers: str, transactional_id: str) -> None:
        import kafka

        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, linger_ms=0
        )
        self._producer.init_transactions()
        self.begin = self._producer.begin_transaction
        self.send: Callable[[str, bytes], object] = self._producer.send
        self.commit = self._producer.commit_transaction
        self.close = self._producer.close


CLIENTS: dict[str, Callable[[str, str], TransactionalClient]] = {
    "dualwrite": Dualwrite,
    "dualwrite 2PC": DualwritePrepared,
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
}


@contextmanager
def client(name: str, bootstrap_servers: str) -> Iterator[TransactionalClient]:
    made = CLIENTS[name](bootstrap_servers, f"bench-{uuid.uuid4().hex[:8]}")
    try:
        yield made
    finally:
        made.close()


def one_record_transactions(producer: TransactionalClient, topic: str, duration_s: float) -> float:
    """Transactions per second with one record of 100 bytes each, one after the other."""
    value = b"x" * 100

    def transact() -> None:
        producer.begin()
        producer.send(topic, value)
        producer.commit()

    for _ in range(20):
        transact()
    count = 0
    start_s = time.perf_counter()
    while time.perf_counter() - start_s < duration_s:
        transact()
        count += 1
    return count / (time.perf_counter() - start_s)


def records_in_large_transactions(producer: TransactionalClient, topic: str, duration_s: float) -> float:
    """Records per second in transactions of 10,000 records of 100 bytes."""
    value = b"x" * 100
    count = 0
    start_s = time.perf_counter()
    while time.perf_counter() - start_s < duration_s:
        producer.begin()
        for _ in range(10_000):
            producer.send(topic, value)
        producer.commit()
        count += 10_000
    return count / (time.perf_counter() - start_s)


WORKLOADS: dict[str, Callable[[TransactionalClient, str, float], float]] = {
    "one-record transactions/s": one_record_transactions,
    "records/s in transactions of 10,000": records_in_large_transactions,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--duration-s", type=float, default=2.0)
    arguments = parser.parse_args()
    with client(arguments.client, arguments.bootstrap_servers) as producer:
        print(WORKLOADS[arguments.workload](producer, arguments.topic, arguments.duration_s))


if __name__ == "__main__":
    main()
