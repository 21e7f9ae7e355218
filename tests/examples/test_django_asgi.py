"""The shop with Django on an ASGI server: workers are killed, and clients go away while they wait."""

from __future__ import annotations

import itertools
import json
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from tests.examples.django_shop import Server, Shop, place_orders, serving

STOCK = 1000
UVICORN = ("-m", "uvicorn", "asgi:application", "--port", "{port}", "--workers", "2")


@pytest.fixture
def shop(postgres_server: PostgresServer, emulator: Emulator) -> Shop:
    made = Shop(postgres_server, emulator)
    made.open_for_business(STOCK)
    return made


def go_away(server: Server, path: str, number: int) -> None:
    """Place an order without waiting for the response, which cancels the view."""
    address = urlsplit(server.url)
    body = json.dumps({"item": "lamp"})
    head = f"PUT /{path}/{number}/ HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((str(address.hostname), address.port)) as connection:
        connection.sendall(f"{head}{body}".encode())


@pytest.mark.parametrize("path", ["orders", "async-orders"])
def test_workers_and_clients_come_and_go(shop: Shop, tmp_path: Path, path: str) -> None:
    """An order is placed again after its client went away, written or not."""
    with serving(shop, tmp_path / "log", *UVICORN) as server:
        given_up = itertools.count(0, 3)
        strikes = {
            **dict.fromkeys(range(4, 100, 4), lambda: go_away(server, path, next(given_up))),
            **dict.fromkeys((7, 41, 81), server.kill_a_worker),
            62: server.replace_workers,
        }
        place_orders(server, range(100), path, after=strikes)
        shop.assert_both_sides_have(range(100), stock=STOCK)
        assert len(server.killed) == 3
        server.end(signal.SIGTERM)
        assert "Traceback" not in server.log.read_text()
    assert shop.leased() == 0  # processes that end in order give their ids back
    assert "0 found, 0 left" in shop.done("dualwrite_recover", "--min-age", "0")
