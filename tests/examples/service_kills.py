"""Services that die by SIGKILL between any two steps of their dual writes, again and again; then both sides compared.

    python -m tests.examples.service_kills --kills 1000

Each life of a service is a process of its own, forked from one that has loaded the libraries. It kills itself at a
pause point that is drawn before: the how-manyth that it reaches, whichever request or message that belongs to.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import multiprocessing
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.producer import Producer
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.testing.postgres import PostgresServer
from tests.support.conditions import until
from tests.support.topics import read_topic

TOPICS: Final = ("orders", "invoices", "orders-refused")
MOST_POINTS: Final = 40
"""The latest pause point at which a life ends: of about four dual writes."""

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["examples.fastapi_service", "examples.faststream_service", __name__])


@dataclass
class Death:
    """Kills this process at the pause point with that number; 0: never."""

    at: int
    reached: int = field(default=0)

    def __call__(self, point: PausePoint) -> None:
        self.reached += 1
        if self.reached == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def live_fastapi(url: str, servers: str, dies_at: int, listener: socket.socket) -> None:
    """Serve orders by HTTP until death."""
    import uvicorn

    from examples.fastapi_service import create_app

    app = create_app(url, servers, lease_ms=1000, pause=Death(dies_at))
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


def live_faststream(url: str, servers: str, dies_at: int, library: str) -> None:
    """Bill orders from a topic until death."""
    from sqlalchemy.ext.asyncio import create_async_engine

    from examples.faststream_service import create_app

    logging.disable(logging.CRITICAL)

    async def run() -> None:
        engine = create_async_engine(url)
        app = create_app(engine, servers, library=library, instance="the-only-one", lease_ms=1000, pause=Death(dies_at))
        await app.run(log_level=logging.ERROR)

    asyncio.run(run())


class Site:
    """A database and a broker that outlive the services."""

    def __init__(self, postgres: PostgresServer, emulator: Emulator, name: str) -> None:
        self.url: Final = postgres.create_database(name).render_as_string(hide_password=False)
        self.servers: Final = emulator.bootstrap_servers
        self._emulator = emulator
        self._engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        for topic in TOPICS:
            emulator.create_topic(topic, 2)

    def rows(self, query: str) -> Counter[tuple[str, str]]:
        with self._engine.connect() as connection:
            return Counter((str(key), str(value)) for key, value in connection.execute(sa.text(query)))

    def records(self, topic: str) -> Counter[tuple[str, str]]:
        return Counter(read_topic(self.servers, topic))


def _killed(process: Any) -> None:
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"the service ended by itself: {process.exitcode}"


def kill_fastapi(site: Site, kills: int, seed: int, progress: Callable[[int], None] = lambda number: None) -> int:
    """Kill the FastAPI example so often, while clients repeat what got no response. Return the number of orders."""
    draw = random.Random(seed)
    numbers = itertools.count()
    waiting: list[int] = []

    def put(client: httpx.Client, number: int) -> int | None:
        """Return the number if there was no response that says it is written."""
        try:
            response = client.put(f"/orders/{number}", json={"item": f"item {number}"})
        except httpx.TransportError:
            return number
        if response.status_code == 503:
            return number
        assert response.is_success, response.text
        return None

    for life in range(kills + 1):
        is_last = life == kills
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            dies_at = 0 if is_last else draw.randint(1, MOST_POINTS)
            process = _forks.Process(target=live_fastapi, args=(site.url, site.servers, dies_at, listener), daemon=True)
            process.start()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client, ThreadPoolExecutor(4) as threads:
            while process.is_alive() and (waiting or not is_last):
                batch = waiting[:8] if is_last else [*waiting[:8], *itertools.islice(numbers, 4)]
                waiting = [
                    *waiting[8:],
                    *(each for each in threads.map(lambda n: put(client, n), batch) if each is not None),
                ]
        if is_last:
            until(lambda: site.records("orders") == site.rows("SELECT id, item FROM orders"))
            process.kill()
        _killed(process)
        progress(life)
    count = next(numbers)
    expected = Counter((str(number), f"item {number}") for number in range(count))
    assert site.rows("SELECT id, item FROM orders") == expected
    assert site.records("orders") == expected
    return count


def kill_faststream(
    site: Site, library: str, kills: int, seed: int, progress: Callable[[int], None] = lambda number: None
) -> int:
    """Kill the FastStream example so often, while orders arrive. Return the number of orders."""
    draw = random.Random(seed)
    numbers = itertools.count()
    with Producer(bootstrap_servers=site.servers, linger_ms=0) as producer:

        def place_order() -> None:
            number = next(numbers)
            order = {"id": f"order-{number}", "item": "lamp" if number % 2 else "chair"}
            value = "{" if number % 50 == 49 else json.dumps(order)  # now and then one that cannot be read
            producer.send("orders", value, key=order["id"])

        for life in range(kills):
            dies_at = draw.randint(1, MOST_POINTS)
            process = _forks.Process(
                target=live_faststream, args=(site.url, site.servers, dies_at, library), daemon=True
            )
            process.start()
            while process.is_alive():
                place_order()
                process.join(0.05)
            _killed(process)
            progress(life)
        producer.flush()
    count = next(numbers)
    refused = Counter((f"order-{number}", "{") for number in range(49, count, 50))
    expected = Counter(
        (f"order-{number}", str(20 if number % 2 else 45)) for number in range(count) if number % 50 != 49
    )
    last = _forks.Process(target=live_faststream, args=(site.url, site.servers, 0, library), daemon=True)
    last.start()
    try:
        until(lambda: site.records("invoices") == expected and site.records("orders-refused") == refused, 180)
    except AssertionError:
        rows = site.rows("SELECT order_id, amount FROM invoices")
        records = site.records("invoices")
        print("rows missing", expected - rows, "too many", rows - expected, flush=True)
        print("records missing", expected - records, "too many", records - expected, flush=True)
        raise
    last.kill()
    _killed(last)
    assert site.rows("SELECT order_id, amount FROM invoices") == expected
    assert site.records("invoices") == expected
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the FastAPI and FastStream examples, and compare both sides.")
    parser.add_argument("--kills", type=int, default=1000, help="in all; default: %(default)s")
    parser.add_argument("services", nargs="*", default=["fastapi", "aiokafka", "confluent"])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    each = -(-arguments.kills // len(arguments.services))

    def progress(life: int) -> None:
        if life % 20 == 19:
            print(f"  {life + 1} kills", flush=True)

    with PostgresServer.start() as postgres:
        postgres.spare_the_disk()
        for name in arguments.services:
            with Emulator() as emulator:
                site = Site(postgres, emulator, f"kills_{name}")
                if name == "fastapi":
                    orders = kill_fastapi(site, each, arguments.seed, progress)
                else:
                    orders = kill_faststream(site, name, each, arguments.seed, progress)
            print(f"{name}: {each} SIGKILLs, {orders} orders, rows == records", flush=True)


if __name__ == "__main__":
    main()
