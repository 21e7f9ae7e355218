"""`python -m benchmarks.broker_scale`: the cost of a request in the emulator, by how much the emulator holds.

Measures the broker's own CPU time per request, which does not depend on the client and other processes. A one-record
transaction is a Produce that opens it and an EndTxn (transaction version 2); ids, partitions and offsets are random.
One parameter is varied at a time. Growing costs would show as a ratio to the first line well above 1.
"""

from __future__ import annotations

import argparse
import io
import random
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from rich.console import Console
from rich.table import Table

from benchmarks.broker_peers import RunningBroker, emulator

_TOPIC = "scale"
_TIMEOUT = timedelta(seconds=30)
_PRODUCE, _FETCH, _CREATE_TOPICS, _INIT_PRODUCER_ID, _END_TXN = 0, 1, 19, 22, 26
_PIPELINED = 100
_RECORDS_PER_BATCH = 10_000


class Wire:
    """A connection that sends requests encoded by kio."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._incoming = self._socket.makefile("rb")

    def send(self, key: int, version: int, request: Any) -> None:
        header_type = request.__header_schema__
        frame = io.BytesIO()
        header = header_type(request_api_key=key, request_api_version=version, correlation_id=0, client_id="scale")
        entity_writer(header_type)(frame, header)
        entity_writer(type(request))(frame, request)
        self._socket.sendall(struct.pack(">i", len(frame.getvalue())) + frame.getvalue())

    def receive(self, key: int, version: int) -> Any:
        (size,) = struct.unpack(">i", self._incoming.read(4))
        response_type = load_response_schema(key, version)
        read: Callable[[bytes, int], tuple[Any, int]] = entity_reader(response_type)
        return read(self._incoming.read(size), 5 if response_type.__flexible__ else 4)[0]

    def call(self, key: int, version: int, request: Any) -> Any:
        self.send(key, version, request)
        return self.receive(key, version)

    def close(self) -> None:
        self._incoming.close()
        self._socket.close()


def message(key: int, version: int, name: str) -> Any:
    """Return a type of a request's module by its name, or the request itself for ''."""
    request_type = load_request_schema(key, version)
    return getattr(__import__(request_type.__module__, fromlist=["*"]), name) if name else request_type


class Workload:
    """A topic and transactional ids on one broker, and the requests to measure."""

    def __init__(self, wire: Wire, ids: int, partitions: int) -> None:
        self._wire = wire
        self._random = random.Random(0)
        self._partitions = partitions
        self._stored = 0
        self._create_topic()
        self._pairs = dict(self._initialised(ids))
        self._ids = list(self._pairs)

    def _create_topic(self) -> None:
        topic = message(_CREATE_TOPICS, 4, "CreatableTopic")(
            name=_TOPIC, num_partitions=self._partitions, replication_factor=1, assignments=(), configs=()
        )
        request = message(_CREATE_TOPICS, 4, "")(topics=(topic,), timeout=_TIMEOUT, validate_only=False)
        _check(self._wire.call(_CREATE_TOPICS, 4, request).topics[0].error_code)

    def _initialised(self, count: int) -> Iterator[tuple[str, tuple[int, int]]]:
        request_type = message(_INIT_PRODUCER_ID, 4, "")
        names = [f"transactional-id-{index}" for index in range(count)]
        for start in range(0, count, _PIPELINED):
            chosen = names[start : start + _PIPELINED]
            for name in chosen:
                request = request_type(
                    transactional_id=name, transaction_timeout=_TIMEOUT, producer_id=-1, producer_epoch=-1
                )
                self._wire.send(_INIT_PRODUCER_ID, 4, request)
            for name in chosen:
                response = self._wire.receive(_INIT_PRODUCER_ID, 4)
                _check(response.error_code)
                yield name, (response.producer_id, response.producer_epoch)

    def store(self, records: int) -> None:
        """Fill the first partition with `records` in batches of 100."""
        batch = _batch(100)
        for _ in range(records // _RECORDS_PER_BATCH):
            for _ in range(_RECORDS_PER_BATCH // 100):
                self._send_produce(None, 0, batch)
            for _ in range(_RECORDS_PER_BATCH // 100):
                self._check_produced()
        self._stored = records

    def _send_produce(self, transactional_id: str | None, partition: int, batch: bytes) -> None:
        data = message(_PRODUCE, 12, "PartitionProduceData")(index=partition, records=batch)
        topic = message(_PRODUCE, 12, "TopicProduceData")(name=_TOPIC, partition_data=(data,))
        request = message(_PRODUCE, 12, "")(
            transactional_id=transactional_id, acks=-1, timeout=_TIMEOUT, topic_data=(topic,)
        )
        self._wire.send(_PRODUCE, 12, request)

    def _check_produced(self) -> None:
        _check(self._wire.receive(_PRODUCE, 12).responses[0].partition_responses[0].error_code)

    def transact(self) -> None:
        name = self._random.choice(self._ids)
        producer_id, producer_epoch = self._pairs[name]
        self._send_produce(name, self._random.randrange(self._partitions), _batch(1, producer_id, producer_epoch))
        self._check_produced()
        request = message(_END_TXN, 5, "")(
            transactional_id=name, producer_id=producer_id, producer_epoch=producer_epoch, committed=True
        )
        response = self._wire.call(_END_TXN, 5, request)
        _check(response.error_code)
        self._pairs[name] = response.producer_id, response.producer_epoch

    def fetch(self) -> None:
        """Fetch one batch from a random offset, committed records only."""
        offset = self._random.randrange(max(self._stored, 1))
        partition = message(_FETCH, 11, "FetchPartition")(
            partition=0, current_leader_epoch=-1, fetch_offset=offset, log_start_offset=-1, partition_max_bytes=1
        )
        topic = message(_FETCH, 11, "FetchTopic")(topic=_TOPIC, partitions=(partition,))
        request = message(_FETCH, 11, "")(
            replica_id=-1,
            max_wait=timedelta(0),
            min_bytes=0,
            max_bytes=1,
            isolation_level=1,
            session_id=0,
            session_epoch=-1,
            topics=(topic,),
            forgotten_topics_data=(),
            rack_id="",
        )
        _check(self._wire.call(_FETCH, 11, request).responses[0].partitions[0].error_code)


def _check(error: Any) -> None:
    if error != 0:
        raise RuntimeError(f"the broker responded with {error!r}")


def _batch(records: int, producer_id: int = -1, producer_epoch: int = -1) -> bytes:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    is_transactional = producer_id >= 0
    builder = DefaultRecordBatchBuilder(
        2, 0, is_transactional, producer_id, producer_epoch, 0 if is_transactional else -1, 1 << 20
    )
    for index in range(records):
        builder.append(index, 1_700_000_000_000, None, b"x" * 10, [])
    return bytes(builder.build())


@contextmanager
def workload(ids: int, partitions: int, records: int, on_disk: bool) -> Iterator[tuple[RunningBroker, Workload]]:
    with tempfile.TemporaryDirectory(prefix="broker-scale-") as directory:
        options = ("--data-dir", directory) if on_disk else ()
        with emulator(*options) as broker, closing(Wire(broker.bootstrap_servers)) as wire:
            made = Workload(wire, ids, partitions)
            made.store(records)
            yield broker, made


def cost_us(broker: RunningBroker, request: Callable[[], None], count: int) -> float:
    """Return the broker's CPU time for one `request`, in microseconds."""
    for _ in range(200):
        request()
    before_s = broker.cpu_s()
    for _ in range(count):
        request()
    return (broker.cpu_s() - before_s) / count * 1e6


def measure(table: Table, what: str, sizes: Sequence[int], count: int, on_disk: bool = False) -> None:
    """Add a line for each size of the varied parameter."""
    first: tuple[float, float] | None = None
    for size in sizes:
        given = {"ids": 100, "partitions": 1, "records": 0} | {what: size}
        with workload(**given, on_disk=on_disk) as (broker, made):
            transaction_us = cost_us(broker, made.transact, count)
            fetch_us = cost_us(broker, made.fetch, count)
            first = first or (transaction_us, fetch_us)
            table.add_row(
                f"{size:,} {what}{' on disk' if on_disk else ''}",
                f"{transaction_us:.0f}",
                f"{transaction_us / first[0]:.2f}",
                f"{fetch_us:.0f}",
                f"{fetch_us / first[1]:.2f}",
                f"{broker.resident_mb():,.0f}",
            )
    table.add_section()


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.broker_scale")
    parser.add_argument("--ids", type=int, nargs="*", default=[10, 1_000, 100_000])
    parser.add_argument("--partitions", type=int, nargs="*", default=[1, 100, 10_000])
    parser.add_argument("--records", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--records-on-disk", type=int, nargs="*", default=[])
    parser.add_argument("--count", type=int, default=3_000, help="requests that are measured, each")
    chosen = parser.parse_args()
    table = Table(title="the emulator's CPU time per request; x: against the first line of the block")
    for column in ("holding", "transaction us", "x", "fetch us", "x", "resident MB"):
        table.add_column(column, justify="left" if column == "holding" else "right")
    console = Console()
    with console.status("measuring"):
        measure(table, "ids", chosen.ids, chosen.count)
        measure(table, "partitions", chosen.partitions, chosen.count)
        measure(table, "records", chosen.records, chosen.count)
        measure(table, "records", chosen.records_on_disk, chosen.count, on_disk=True)
    console.print(table)


if __name__ == "__main__":
    main()
