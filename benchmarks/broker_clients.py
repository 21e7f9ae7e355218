"""The client side of the broker benchmark, with confluent-kafka: `python -m benchmarks.broker_clients WORKLOAD ...`.

Runs in a process of its own, so that its memory and CPU time do not count as the broker's, and prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import uuid
from typing import Any

import confluent_kafka

from benchmarks.librdkafka_mock import PARTITIONS

_BATCH = 1000
_TIMEOUT_S = 60.0


def transactions(bootstrap_servers: str, producers: int, duration_s: float) -> dict[str, float]:
    """Run one-record transactions with `producers` concurrent producers, each in a thread of its own."""
    clients = [_transactional_producer(bootstrap_servers) for _ in range(producers)]
    counts = [0] * producers
    start = threading.Barrier(producers + 1)

    def run(index: int) -> None:
        producer, value = clients[index], b"x" * 100
        for _ in range(5):
            _transact(producer, value)
        start.wait()
        end_s = time.perf_counter() + duration_s
        while time.perf_counter() < end_s:
            _transact(producer, value)
            counts[index] += 1

    threads = [threading.Thread(target=run, args=(index,)) for index in range(producers)]
    for thread in threads:
        thread.start()
    start.wait()
    started_s = time.perf_counter()
    for thread in threads:
        thread.join()
    return {"count": sum(counts), "elapsed_s": time.perf_counter() - started_s}


def _transactional_producer(bootstrap_servers: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": f"bench-{uuid.uuid4().hex[:8]}",
            "linger.ms": 0,
        }
    )
    producer.init_transactions(_TIMEOUT_S)
    return producer


def _transact(producer: confluent_kafka.Producer, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce("transactions", value)
    producer.commit_transaction()


def bulk_in(bootstrap_servers: str, topic: str, records: int, record_bytes: int) -> dict[str, float]:
    """Produce `records` to all partitions and wait until all of them are acknowledged."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 5,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    producer.list_topics(topic, _TIMEOUT_S)
    messages = [{"value": b"x" * record_bytes, "partition": index % PARTITIONS} for index in range(_BATCH)]
    started_s = time.perf_counter()
    for _ in range(records // _BATCH):
        _produce(producer, topic, messages)
    if producer.flush(_TIMEOUT_S):
        raise RuntimeError("not everything was acknowledged in time")
    return {"count": records, "elapsed_s": time.perf_counter() - started_s}


def _produce(producer: confluent_kafka.Producer, topic: str, messages: list[dict[str, Any]]) -> None:
    while len(producer) > 190_000:
        producer.poll(0.005)
    if producer.produce_batch(topic, messages) != len(messages):
        raise RuntimeError("the client's queue is full")


def bulk_out(bootstrap_servers: str, topic: str, records: int) -> dict[str, float]:
    """Consume `records` from the beginning of all partitions."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"bench-{uuid.uuid4().hex[:8]}",
            "enable.auto.commit": False,
            "fetch.min.bytes": 1,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    count, started_s, last_s = 0, time.perf_counter(), time.perf_counter()
    while count < records:
        got = len(consumer.consume(10_000, 0.2))
        count += got
        if got:
            last_s = time.perf_counter()
        elif time.perf_counter() - last_s > _TIMEOUT_S:
            raise RuntimeError(f"{count} of {records} records arrived")
    elapsed_s = time.perf_counter() - started_s
    consumer.close()
    return {"count": count, "elapsed_s": elapsed_s}


def bulk_both(bootstrap_servers: str, topic: str, records: int, record_bytes: int) -> dict[str, float]:
    """Produce and consume concurrently, and return the time until the consumer has read everything."""
    read: dict[str, float] = {}
    consumer = threading.Thread(target=lambda: read.update(bulk_out(bootstrap_servers, topic, records)))
    consumer.start()
    bulk_in(bootstrap_servers, topic, records, record_bytes)
    consumer.join()
    return read


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=("transactions", "in", "out", "both"))
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", default="bulk")
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--duration-s", type=float, default=2.0)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--record-bytes", type=int, default=1000)
    chosen = parser.parse_args()
    address = chosen.bootstrap_servers
    result = {
        "transactions": lambda: transactions(address, chosen.producers, chosen.duration_s),
        "in": lambda: bulk_in(address, chosen.topic, chosen.records, chosen.record_bytes),
        "out": lambda: bulk_out(address, chosen.topic, chosen.records),
        "both": lambda: bulk_both(address, chosen.topic, chosen.records, chosen.record_bytes),
    }[chosen.workload]()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
