"""The shop with Django: its own tests, its commands, and that kills between its responses lose and double nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from tests.examples.django_shop import Server, Shop, serving

STOCK = 1000


@pytest.fixture
def shop(postgres_server: PostgresServer, emulator: Emulator) -> Shop:
    return Shop(postgres_server, emulator)


def test_its_own_tests_pass(shop: Shop) -> None:
    assert "Ran 5 tests" in shop.done("test")


def test_its_commands(shop: Shop) -> None:
    assert "no issues" in shop.done("check")
    assert "No changes detected" in shop.done("makemigrations", "--check")
    shop.done("migrate")
    tables = {name for (name,) in shop.query("SELECT tablename FROM pg_tables WHERE tablename LIKE 'kafka_%'")}
    assert tables == {"kafka_transaction_state", "kafka_transaction_database", "kafka_transaction_lease"}
    assert "0 found, 0 left, 0 settled" in shop.done("dualwrite_recover", "--apply")


def order(server: Server, numbers: list[int], *, kill_after: int) -> list[int]:
    """Send orders, four at a time, and kill the service after so many responses; return the answered ones."""
    answered: list[int] = []

    def put(number: int) -> None:
        try:
            answer = httpx.put(f"{server.url}/orders/{number}/", json={"item": "lamp"}, timeout=60)
        except httpx.TransportError:
            return
        assert answer.is_success, answer.text
        answered.append(number)
        if len(answered) == kill_after:
            server.process.kill()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(put, numbers))
    return answered


def test_killed_in_the_middle_and_asked_again(shop: Shop, tmp_path: Path) -> None:
    """Orders without a response are placed again, written or not."""
    shop.open_for_business(STOCK)
    runserver = ("manage.py", "runserver", "--noreload", "127.0.0.1:{port}")
    waiting = list(range(40))
    for kill_after in (7, 11):
        with serving(shop, tmp_path / "log", *runserver) as server:
            answered = order(server, waiting, kill_after=kill_after)
        assert len(answered) >= kill_after
        waiting = [number for number in waiting if number not in answered]
    with serving(shop, tmp_path / "log", *runserver) as server:
        assert sorted(order(server, waiting, kill_after=-1)) == waiting
        shop.assert_both_sides_have(range(40), stock=STOCK)
