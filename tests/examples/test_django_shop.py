"""The shop with Django: its own tests, its commands, and that kills between its responses lose and double nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from tests.support.conditions import until
from tests.support.databases import unique
from tests.support.topics import read_topic

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "django_shop"


class Shop:
    """The project on a database of its own."""

    def __init__(self, server: PostgresServer, kafka: Emulator) -> None:
        self.url = server.create_database(unique("shop").replace("-", "_"))
        self.kafka = kafka
        host = self.url.query.get("host") or self.url.host or ""
        assert isinstance(host, str)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SHOP_DATABASE": str(self.url.database),
            "SHOP_DATABASE_HOST": host,
            "SHOP_DATABASE_PORT": str(self.url.port or ""),
            "SHOP_DATABASE_USER": self.url.username or "",
            "SHOP_DATABASE_PASSWORD": self.url.password or "",
            "SHOP_KAFKA": kafka.bootstrap_servers,
            "SHOP_LEASE_MS": "1000",
        }

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


@pytest.fixture
def shop(postgres_server: PostgresServer, emulator: Emulator) -> Shop:
    return Shop(postgres_server, emulator)


def test_its_own_tests_pass(shop: Shop) -> None:
    assert "Ran 4 tests" in shop.done("test")


def test_its_commands(shop: Shop) -> None:
    assert "no issues" in shop.done("check")
    assert "No changes detected" in shop.done("makemigrations", "--check")
    shop.done("migrate")
    tables = {name for (name,) in shop.query("SELECT tablename FROM pg_tables WHERE tablename LIKE 'kafka_%'")}
    assert tables == {"kafka_transaction_state", "kafka_transaction_database", "kafka_transaction_lease"}
    assert "0 found, 0 left, 0 settled" in shop.done("dualwrite_recover", "--apply")


@contextmanager
def serving(shop: Shop) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [sys.executable, "manage.py", "runserver", "--noreload", address],
        cwd=SHOP,
        env=shop.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        try:
            return httpx.get(f"http://{address}/").status_code == 404
        except httpx.TransportError:
            return False

    try:
        until(answers)
        yield process, f"http://{address}"
    finally:
        process.kill()
        process.wait()


def order(process: subprocess.Popen[bytes], url: str, numbers: list[int], *, kill_after: int) -> list[int]:
    """Send orders, four at a time, and kill the service after so many answers; which were answered."""
    answered: list[int] = []

    def put(number: int) -> None:
        try:
            answer = httpx.put(f"{url}/orders/{number}/", json={"item": "lamp"}, timeout=60)
        except httpx.TransportError:
            return
        assert answer.is_success, answer.text
        answered.append(number)
        if len(answered) == kill_after:
            process.kill()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(put, numbers))
    return answered


def test_killed_in_the_middle_and_asked_again(shop: Shop) -> None:
    """What was not answered is asked for again, whether or not it was written."""
    shop.kafka.create_topic("orders")
    shop.done("migrate")
    shop.query("INSERT INTO orders_item VALUES ('lamp', 1000)")
    waiting = list(range(40))
    for kill_after in (7, 11):
        with serving(shop) as (process, url):
            answered = order(process, url, waiting, kill_after=kill_after)
        assert len(answered) >= kill_after
        waiting = [number for number in waiting if number not in answered]
    with serving(shop) as (process, url):
        assert sorted(order(process, url, waiting, kill_after=-1)) == waiting
        everything = Counter(str(number) for number in range(40))
        until(lambda: Counter(key for key, _ in read_topic(shop.kafka.bootstrap_servers, "orders")) == everything)
    assert Counter(number for (number,) in shop.query("SELECT number FROM orders_order")) == everything
    assert shop.query("SELECT stock FROM orders_item") == [("960",)]
