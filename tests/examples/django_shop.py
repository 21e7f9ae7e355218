"""The project `examples/django_shop` on a database and a broker, its servers, and clients that repeat their orders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from tests.examples.service_lives import DJANGO_SHOP as SHOP
from tests.examples.service_lives import shop_environment
from tests.support.conditions import until
from tests.support.databases import unique
from tests.support.servers.ports import free_port
from tests.support.topics import read_topic

ROOT: Final = Path(__file__).parents[2]
TOPIC: Final = "orders"
CLIENTS: Final = 4


class Shop:
    """The project on a database of its own."""

    def __init__(self, server: PostgresServer, kafka: Emulator) -> None:
        self.url = server.create_database(unique("shop").replace("-", "_"))
        self.kafka = kafka
        shop = shop_environment(self.url, kafka.bootstrap_servers)
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), **shop}

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(
            command, cwd=SHOP, env=self.environment, capture_output=True, text=True, check=False, timeout=240
        )

    def done(self, *arguments: str) -> str:
        ended = self.manage(*arguments)
        assert ended.returncode == 0, ended.stderr + ended.stdout
        return ended.stdout + ended.stderr

    def query(self, sql: str) -> list[tuple[str, ...]]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            answer = connection.execute(sa.text(sql))
            return [tuple(map(str, row)) for row in answer] if answer.returns_rows else []

    def open_for_business(self, stock: int) -> None:
        """Create the tables and the topic, and stock the shop."""
        self.kafka.create_topic(TOPIC)
        self.done("migrate")
        self.query(f"INSERT INTO orders_item VALUES ('lamp', {stock})")

    def rows(self) -> Counter[str]:
        return Counter(number for (number,) in self.query("SELECT number FROM orders_order"))

    def records(self) -> Counter[str]:
        return Counter(key for key, _ in read_topic(self.kafka.bootstrap_servers, TOPIC))

    def leased(self) -> int:
        """How many ids belong to some process, dead or alive."""
        return int(self.query("SELECT count(*) FROM kafka_transaction_lease WHERE owner IS NOT NULL")[0][0])

    def assert_both_sides_have(self, numbers: Sequence[int], *, stock: int) -> None:
        """Wait until readers see each order once, and nothing is open; then both sides must agree."""
        everything = Counter(map(str, numbers))
        until(lambda: self.records() == everything)
        assert self.rows() == everything
        assert self.query("SELECT stock FROM orders_item") == [(str(stock - len(numbers)),)]
        until(
            lambda: {each.state for each in self.kafka.transactions()} <= {"Empty", "CompleteCommit", "CompleteAbort"}
        )


@dataclass
class Server:
    """A server of the project, with the processes that serve."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    killed: list[int] = field(default_factory=list)

    def workers(self) -> list[int]:
        """The processes below the server's first one; that one itself if it has none."""
        pid = self.process.pid
        try:
            below = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except FileNotFoundError:
            return []
        return [each for each in map(int, below.split()) if b"resource_tracker" not in _command_of(each)] or [pid]

    def replace_workers(self) -> None:
        """Have all workers replaced, as a deployment does; requests that are being served end."""
        before = set(self.workers())
        self.process.send_signal(signal.SIGHUP)
        until(lambda: not before & set(self.workers()))

    def kill_a_worker(self) -> None:
        """Kill the worker that has lived longest."""
        victim = min(self.workers())
        self.killed.append(victim)
        os.kill(victim, signal.SIGKILL)

    def end(self, by: signal.Signals) -> int:
        """Ask the server to end, and return its exit code."""
        self.process.send_signal(by)
        return self.process.wait(60)


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


@contextmanager
def serving(shop: Shop, log: Path, *command: str) -> Iterator[Server]:
    """Run a server until the end of the block; `command` has the port as `{port}`."""
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *(part.format(port=port) for part in command)],
            cwd=SHOP,
            env=shop.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(process, f"http://127.0.0.1:{port}", log)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{server.url}/ready/", timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(is_ready)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def place_orders(
    server: Server, numbers: Sequence[int], path: str = "orders", *, after: Mapping[int, Callable[[], object]]
) -> None:
    """Place orders from several threads, each until it has a response; call a function after so many responses."""
    counting, strikes = threading.Lock(), dict(after)
    answered = 0

    def place(number: int) -> None:
        nonlocal answered
        until(lambda: _is_answered(server, path, number))
        with counting:
            answered += 1
            strike = strikes.pop(answered, None)
        if strike is not None:
            strike()

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(place, numbers))
    assert not strikes, f"never reached: {strikes}"


def _is_answered(server: Server, path: str, number: int) -> bool:
    """Place an order; False without a response, or with one that asks for a repetition."""
    try:
        answer = httpx.put(f"{server.url}/{path}/{number}/", json={"item": "lamp"}, timeout=60)
    except httpx.TransportError:
        return False
    if answer.status_code == 503:
        return False
    assert answer.is_success, answer.text + server.log.read_text()
    return True
