"""An emulator in its own process, killed while clients are at work, and restarted on its data directory."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

import pytest
from kafka import KafkaConsumer, TopicPartition
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.record_batch import build_batch
from dualwrite.errors import DualWriteError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer
from tests.emulator.api.raw_client import RawClient, plain_batch
from tests.support.conditions import until
from tests.support.forked_broker import end_broker, start_broker


class KillableBroker:
    """`python -m dualwrite.broker_emulator --data-dir`, on one port over all restarts."""

    def __init__(self, data_dir: Path, fsync: str, nodes: int = 1) -> None:
        port = _free_port(nodes)
        self.address = ",".join(f"127.0.0.1:{port + node}" for node in range(nodes))
        self._arguments = ["--listen", f"127.0.0.1:{port}", "--nodes", str(nodes), "--topic", "orders:2"]
        self._arguments += ["--data-dir", str(data_dir), "--config", f"fsync={fsync}"]
        self._arguments += ["--config", "log.segment.bytes=20000", "--config", "log.cleaner.backoff.ms=200"]
        self._arguments += ["--config", "transaction.abort.timed.out.transaction.cleanup.interval.ms=100"]
        self._log = data_dir.with_name("log")
        self._process: ForkServerProcess | None = None

    def start(self) -> Self:
        self._process, address = start_broker(self._arguments, self._log)
        assert address == self.address
        return self

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        return end_broker(self._process, number)

    @property
    def log(self) -> str:
        """The broker's log output over all restarts."""
        return self._log.read_text()

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.is_alive()


def _free_port(nodes: int) -> int:
    """Return a port that is free, with as many after it as the other nodes need."""
    while True:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port: int = listener.getsockname()[1]
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for node in range(1, nodes):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + node))
            return port


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KillableBroker]:
    broker = KillableBroker(tmp_path / "data", getattr(request, "param", "interval")).start()
    yield broker
    if broker.runs:
        broker.kill()
    assert "Traceback" not in broker.log


def make_producer(broker: KillableBroker, transactional_id: str | None = None, **settings: Any) -> Producer:
    settings = {"max_block_ms": 60_000, "retry_backoff_ms": 10, "reconnect_backoff_ms": 10} | settings
    if transactional_id is not None:
        settings |= {"transactional_id": transactional_id, "transaction_two_phase_commit_enable": True}
    return Producer(bootstrap_servers=broker.address, **settings)


def committed(broker: KillableBroker) -> list[bytes]:
    """Return the values of a read_committed consumer, once no transaction is open."""
    consumer_class: Any = KafkaConsumer
    consumer = consumer_class(
        bootstrap_servers=broker.address,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        group_id=None,
    )
    try:
        partitions = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        values: list[bytes] = []
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for records in consumer.poll(timeout_ms=100).values():
                values += [record.value for record in records]
        return values
    finally:
        consumer.close()


class Work:
    """Producers in threads, with their sent and acknowledged records."""

    def __init__(self, broker: KillableBroker) -> None:
        self._broker = broker
        self._stopped = threading.Event()
        self.acknowledged: list[str] = []
        self.begun: set[str] = set()
        targets = [self._transact, self._transact, self._send]
        self._threads = [threading.Thread(target=target, args=(f"w{number}",)) for number, target in enumerate(targets)]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _transact(self, name: str) -> None:
        """Run transactions with a record on each partition; replace a producer that cannot go on."""
        number = 0
        while not self._stopped.is_set():
            producer = make_producer(self._broker, name)
            try:
                producer.init_transactions()
                while not self._stopped.is_set():
                    number += 1
                    value = f"{name}-{number}"
                    self.begun.add(value)
                    producer.begin_transaction()
                    for partition in (0, 1):
                        producer.send("orders", value, partition=partition)
                    producer.commit_transaction()
                    self.acknowledged.append(value)
            except DualWriteError:
                continue  # the log shows whether the last one was committed
            finally:
                producer.close(timeout_s=0)

    def _send(self, name: str) -> None:
        """Run an idempotent producer that keeps its producer id over every restart."""
        with make_producer(self._broker, delivery_timeout_ms=60_000) as producer:
            number = 0
            while not self._stopped.is_set():
                number += 1
                value = f"{name}-{number}"
                self.begun.add(value)
                futures = [producer.send("orders", value, partition=partition) for partition in (0, 1)]
                for future in futures:
                    future.result(60)
                self.acknowledged.append(value)


@pytest.mark.parametrize("broker", ["always", "interval"], indirect=True)
def test_what_was_acknowledged_survives_being_killed_exactly_once(broker: KillableBroker) -> None:
    work = Work(broker)
    try:
        for _ in range(3):
            before = len(work.acknowledged)
            until(lambda before=before: len(work.acknowledged) >= before + 60, timeout_s=30)  # type: ignore[misc]
            broker.kill()
            broker.start()
        before = len(work.acknowledged)
        until(lambda: len(work.acknowledged) >= before + 20, timeout_s=30)
    finally:
        work.finish()
    for name in ("w0", "w1"):  # aborts transactions that are still open
        make_producer(broker, name).init_transactions()
    found = Counter(value.decode() for value in committed(broker))
    assert {value: found[value] for value in work.acknowledged} == dict.fromkeys(work.acknowledged, 2)
    assert set(found.values()) == {2}  # a record on each partition, or on none
    assert found.keys() <= work.begun
    with RawClient(broker.address) as client:
        listed = client.call("list_transactions", 0, state_filters=(), producer_id_filters=())
        states = {state.transactional_id: state.transaction_state for state in listed.transaction_states}
        assert states.keys() == {"w0", "w1"}
        assert not [state for state in states.values() if state in ("Ongoing", "PrepareCommit", "PrepareAbort")]
    assert broker.stop() == 0


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_was_prepared_before_the_kill_is_completed_after_the_restart(
    broker: KillableBroker, is_committed: bool
) -> None:
    producer = make_producer(broker, "writer")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"first", partition=0)
    producer.commit_transaction()
    producer.begin_transaction()
    for partition in (0, 1):
        producer.send("orders", b"prepared", partition=partition)
    prepared = producer.prepare_transaction()
    broker.kill()
    producer.close(timeout_s=0)
    broker.start()
    assert committed(broker) == [b"first"]
    with make_producer(broker, "writer") as successor:
        successor.init_transactions(keep_prepared_txn=True)
        assert successor.prepared_txn_state == prepared
        successor.complete_transaction(prepared if is_committed else PreparedTxnState("1:1"))
        until(lambda: _is_complete(broker, "writer"))
    assert sorted(committed(broker)) == [b"first", *[b"prepared"] * (2 if is_committed else 0)]
    broker.kill()
    broker.start()
    assert sorted(committed(broker)) == [b"first", *[b"prepared"] * (2 if is_committed else 0)]


def _is_complete(broker: KillableBroker, transactional_id: str) -> bool:
    with RawClient(broker.address) as client:
        answer = client.call("describe_transactions", 0, transactional_ids=(transactional_id,))
        state: str = answer.transaction_states[0].transaction_state
        return state.startswith("Complete")


def test_a_retry_after_the_restart_is_recognised(broker: KillableBroker) -> None:
    with RawClient(broker.address) as client:
        producer = client.init_producer_id(None)
        records = _idempotent_batch(producer, b"once")
        assert client.produce("orders", plain_batch(b"before")).base_offset == 0
        assert client.produce("orders", records).base_offset == 1
    broker.kill()
    broker.start()
    with RawClient(broker.address) as client:
        again = client.produce("orders", records)
        assert (again.error_code, again.base_offset) == (ErrorCode.none, 1)
        assert client.init_producer_id(None).producer_id > producer.producer_id
    assert committed(broker) == [b"before", b"once"]


def _idempotent_batch(producer: Any, value: bytes) -> bytes:
    return build_batch(
        [(None, value)],
        timestamp_ms=1_700_000_000_000,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
    )
