"""A broker in a process of its own, which can be killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

import pytest

from dualwrite.errors import DualWriteError
from dualwrite.producer import Producer
from tests.support.forked_broker import end_broker, start_broker
from tests.support.servers.ports import free_port
from tests.support.topics import committed_values


class KillableBroker:
    """`python -m dualwrite.broker_emulator --data-dir`, on one port over all restarts."""

    def __init__(self, data_dir: Path, fsync: str, nodes: int = 1) -> None:
        port = free_port(nodes)
        self.address = ",".join(f"127.0.0.1:{port + node}" for node in range(nodes))
        self._arguments = ["--listen", f"127.0.0.1:{port}", "--nodes", str(nodes), "--topic", "orders:2"]
        self._arguments += ["--data-dir", str(data_dir), "--config", f"fsync={fsync}", "--config", "profile=kip-939"]
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
    return committed_values(broker.address, "orders", partitions=2)


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
