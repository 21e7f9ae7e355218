"""Services that die by SIGKILL between any two steps of their dual writes, again and again; then both sides compared.

Each run has a database and a broker of its own. With two instances two processes of a service are alive at a time, and
die independently. Some lives end by SIGTERM instead, after which the service has to end by itself; and some are
frozen on the way, for longer than their leases last, and go on as if nothing had happened.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from typing import Final, Protocol

import httpx

from dualwrite.producer import Producer
from examples import fastapi_service, faststream_service
from tests.examples.service_lives import (
    Death,
    Surroundings,
    live_django,
    live_fastapi,
    live_faststream,
    migrate_django,
    start_life,
)
from tests.examples.service_site import LAST, Side, Site

MOST_POINTS: Final = 40
"""The latest pause point at which a life ends: of about four dual writes."""

TERMINATED: Final = 0.1
"""The share of lives that end by SIGTERM."""

FROZEN: Final = 0.1
"""The share of lives that are frozen for a while."""

LIMIT_S: Final = 60.0
"""How long both sides may take to agree after the last death.

A service alone needs the start of a process, its lease (1 s) and a third of it until the next sweep, and the few
waiting orders: 0.4 to 4 s. With two, the last process gets the partitions of the other when that session has ended (10
s, FastStream's default, and 3 s until the next heartbeat): 10 to 15 s. The rest is for a machine that has other things
to do.
"""


@dataclass
class Run:
    """The kills of one service on one site."""

    service: str
    seed: int
    orders: int = 0
    left: int = 0
    """How many of them had no row at the last death."""
    agreed_after_s: float = 0.0
    """Seconds from the last death to the agreement of both sides."""
    deaths: Counter[str] = field(default_factory=Counter)
    """How many lives ended by which signal at which pause point."""


class Service(Protocol):
    """A service that can be killed: how to start it, and how to give it work."""

    orders: int

    def start(self, instance: int, life: str, death: Death) -> ForkServerProcess: ...

    def keep_busy(self, instance: int, process: ForkServerProcess) -> None:
        """Give the process work until it is dead."""

    def finish(self, process: ForkServerProcess) -> None:
        """Give the last process the remaining work."""

    def sides(self) -> list[Side]:
        """Return the required entries of each side at the end."""


class HttpService:
    """The FastAPI or the Django example, whose clients repeat requests without a response."""

    def __init__(self, site: Site, live: Callable[..., None], path: str, query: str) -> None:
        self._site = site
        self._live = live
        self._path = path
        self._query = query
        self._ports: dict[int, int] = {}
        self._numbers = itertools.count()
        self._waiting: list[int] = []
        self._taking = threading.Lock()
        self.orders = 0

    def start(self, instance: int, life: str, death: Death) -> ForkServerProcess:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._ports[instance] = listener.getsockname()[1]
            return start_life(self._live, self._site.around, life, death, listener)

    def keep_busy(self, instance: int, process: ForkServerProcess) -> None:
        with self._client(instance) as client, ThreadPoolExecutor(4) as threads:
            while process.is_alive():
                if not self._send(client, threads, self._next_batch()):
                    process.join(0.02)  # it is about to be dead

    def finish(self, process: ForkServerProcess) -> None:
        with self._client(0) as client, ThreadPoolExecutor(4) as threads:
            while process.is_alive() and self._waiting:
                self._send(client, threads, self._take_waiting())

    def _client(self, instance: int) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self._ports[instance]}", timeout=60)

    def _next_batch(self) -> list[int]:
        """Return the waiting orders, and a few new ones if they are few."""
        batch = self._take_waiting()
        with self._taking:
            if len(batch) < 4:
                batch += itertools.islice(self._numbers, 4)
            self.orders = max([self.orders, *(number + 1 for number in batch)])
        return batch

    def _take_waiting(self) -> list[int]:
        with self._taking:
            batch = self._waiting[:8]
            del self._waiting[:8]
        return batch

    def _send(self, client: httpx.Client, threads: ThreadPoolExecutor, batch: list[int]) -> bool:
        """Send a batch of orders, and return whether any is known to be written."""
        written = list(threads.map(lambda number: self._put(client, number), batch))
        with self._taking:
            self._waiting += [number for number, is_written in zip(batch, written, strict=True) if not is_written]
        return any(written)

    def _put(self, client: httpx.Client, number: int) -> bool:
        """Return whether a response says that the order is written."""
        try:
            response = client.put(self._path.format(number), json={"item": "lamp"})
        except httpx.TransportError:
            return False
        if response.status_code == 503:
            return False
        assert response.is_success, response.text
        return True

    def sides(self) -> list[Side]:
        return [
            self._site.rows(self._query, Counter((str(number), "lamp") for number in range(self.orders))),
            self._site.records("orders", self._published()),
        ]

    def _published(self) -> Counter[tuple[str, str]]:
        value = json.dumps({"item": "lamp"}) if self._live is live_django else "lamp"
        return Counter((str(number), value) for number in range(self.orders))


class FastStreamService:
    """The FastStream example, for which orders arrive all the time."""

    def __init__(self, site: Site, library: str) -> None:
        self._site = site
        self._library = library
        self._numbers = itertools.count()
        self._producer = Producer(bootstrap_servers=site.servers, linger_ms=0)
        self.orders = 0

    def start(self, instance: int, life: str, death: Death) -> ForkServerProcess:
        return start_life(live_faststream, self._site.around, life, death, self._library, f"instance-{instance}")

    def keep_busy(self, instance: int, process: ForkServerProcess) -> None:
        while process.is_alive():
            self._place_order()
            process.join(0.05)

    def finish(self, process: ForkServerProcess) -> None:
        self._producer.close()

    def _place_order(self) -> None:
        number = next(self._numbers)
        self.orders = max(self.orders, number + 1)
        order = {"id": f"order-{number}", "item": "lamp" if number % 2 else "chair"}
        value = "{" if _cannot_be_read(number) else json.dumps(order)
        self._producer.send("orders", value, key=order["id"])

    def sides(self) -> list[Side]:
        numbers = range(self.orders)
        invoices = [(f"order-{each}", str(20 if each % 2 else 45)) for each in numbers if not _cannot_be_read(each)]
        refused = Counter((f"order-{each}", "{") for each in numbers if _cannot_be_read(each))
        return [
            self._site.rows("SELECT order_id, amount FROM invoices", Counter(invoices)),
            self._site.records("invoices", Counter(invoices)),
            self._site.records("orders-refused", refused),
        ]


def _cannot_be_read(number: int) -> bool:
    return number % 50 == 49


def _fastapi(site: Site) -> Service:
    site.create_tables(fastapi_service.Base.metadata)
    return HttpService(site, live_fastapi, "/orders/{}", "SELECT id, item FROM orders")


def _django(site: Site) -> Service:
    migration = start_life(migrate_django, site.around)
    migration.join()
    assert migration.exitcode == 0, "the tables were not created"
    return HttpService(site, live_django, "/orders/{}/", "SELECT number, item_id FROM orders_order")


def _faststream(site: Site, *, library: str) -> Service:
    site.create_tables(faststream_service.Base.metadata)
    return FastStreamService(site, library)


SERVICES: Final[dict[str, Callable[[Site], Service]]] = {
    "fastapi": _fastapi,
    "django": _django,
    "aiokafka": partial(_faststream, library="aiokafka"),
    "confluent": partial(_faststream, library="confluent"),
}


def kill_service(site: Site, name: str, kills: int, seed: int, *, instances: int = 1) -> Run:
    """Kill a service so often, while it has work; then compare both sides."""
    run = Run(name, seed)
    service = SERVICES[name](site)
    draw = random.Random(seed)
    deaths = iter([_death(draw) for _ in range(kills)])
    with ThreadPoolExecutor(instances) as lanes:
        for points in lanes.map(
            lambda instance: list(_lives(service, site.around, instance, deaths)), range(instances)
        ):
            run.deaths.update(points)
    run.orders, run.left = service.orders, service.sides()[0].lacks
    died_s = time.monotonic()
    last = service.start(0, LAST, Death(0))
    service.finish(last)
    try:
        site.await_agreement(*service.sides(), limit_s=LIMIT_S)
        run.agreed_after_s = time.monotonic() - died_s
    finally:
        last.kill()
        last.join()
    assert all(side.agrees for side in service.sides()), "what the last process has done after the agreement"
    return run


def _death(draw: random.Random) -> Death:
    at = draw.randint(1, MOST_POINTS)
    how = signal.SIGTERM if draw.random() < TERMINATED else signal.SIGKILL
    sleeps_at = draw.randint(1, at) if draw.random() < FROZEN else 0
    return Death(at, how, sleeps_at)


_drawing = threading.Lock()


def _lives(service: Service, logs: Surroundings, instance: int, deaths: Iterator[Death]) -> Iterator[str]:
    """Let one instance live and die, until no deaths are left."""
    for number in itertools.count():
        with _drawing:
            death = next(deaths, None)
        if death is None:
            return
        life = f"{instance}-{number}"
        process = service.start(instance, life, death)
        service.keep_busy(instance, process)
        process.join()
        was_asked = death.signal is signal.SIGTERM  # FastStream ends with an error if it is asked while it starts
        assert was_asked or process.exitcode == -signal.SIGKILL, (
            f"the service ended by itself: {process.exitcode}; {logs.end_of(life)}"
        )
        before, _, behind = logs.end_of(life).rpartition(death.signal.name)
        yield f"{death.signal.name} {behind.split()[0] if before else 'at no point'}"
