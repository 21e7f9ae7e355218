"""The service: its responses, and that kills between them lose and duplicate nothing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Error, Fault
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.testing.postgres import PostgresServer
from tests.crash.scenario import AtPoint
from tests.recipes.repairs import lose_decided
from tests.support.conditions import until
from tests.support.databases import unique
from tests.support.topics import read_topic

TOPIC = "orders"
Use = Callable[[httpx.AsyncClient], Awaitable[None]]


@pytest.fixture
def database_url(postgres_server: PostgresServer) -> str:
    url = postgres_server.create_database(unique("shop").replace("-", "_"))
    return url.render_as_string(hide_password=False)


@pytest.fixture
def kafka(emulator: Emulator) -> Emulator:
    emulator.create_topic(TOPIC)
    return emulator


def table(database_url: str) -> list[tuple[str, str]]:
    with sa.create_engine(database_url, poolclass=sa.NullPool).connect() as connection:
        return [(str(order_id), item) for order_id, item in connection.execute(sa.text("SELECT id, item FROM orders"))]


def in_process(database_url: str, kafka: Emulator, use: Use, **settings: Any) -> None:
    from examples.fastapi_service import create_app  # loads FastAPI, which no other file needs

    async def run() -> None:
        app = create_app(database_url, kafka.bootstrap_servers, **settings)
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                await use(client)

    asyncio.run(run())


def test_an_order_is_in_the_table_and_in_the_topic_once(database_url: str, kafka: Emulator) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        lamp = {"item": "lamp"}
        answers = await asyncio.gather(*(client.put(f"/orders/{number}", json=lamp) for number in range(20)))
        assert {answer.status_code for answer in answers} == {201}
        assert (await client.put("/orders/1", json=lamp)).status_code == 200
        assert (await client.put("/orders/1", json={"item": "chair"})).status_code == 409
        assert (await client.get("/orders/1")).json() == {"id": 1, "item": "lamp"}
        assert (await client.get("/orders/99")).status_code == 404

    in_process(database_url, kafka, use)
    assert Counter(table(database_url)) == Counter((str(number), "lamp") for number in range(20))
    assert Counter(read_topic(kafka.bootstrap_servers, TOPIC)) == Counter(table(database_url))


def test_the_health_page_shows_transactions_in_doubt(database_url: str, kafka: Emulator) -> None:
    """Kafka refuses to commit a decided dual write; the service goes on, and so does recovery."""

    async def use(client: httpx.AsyncClient) -> None:
        assert (await client.get("/health")).json()["in_doubt"] == 0
        kafka.faults.add(Fault(api="EndTxn", action=Error(120), count=None))  # TRANSACTION_ABORTABLE
        assert (await client.put("/orders/1", json={"item": "lamp"})).status_code == 201
        assert (await client.get("/health")).json()["in_doubt"] == 1
        assert (await client.put("/orders/1", json={"item": "lamp"})).status_code == 200
        kafka.faults.clear()
        async with asyncio.timeout(60):
            while (await client.get("/health")).json()["in_doubt"]:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)

    in_process(database_url, kafka, use)
    assert read_topic(kafka.bootstrap_servers, TOPIC) == table(database_url) == [("1", "lamp")]


def test_the_service_is_ready_while_orders_would_be_taken(database_url: str, kafka: Emulator) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        assert (await client.get("/live")).json() == {"status": "ok"}
        assert (await client.put("/orders/1", json={"item": "lamp"})).status_code == 201
        assert (await client.get("/ready")).json() == {"database": "ok", "kafka": "ok"}
        await asyncio.to_thread(kafka.crash_node, 0)
        refused = await client.put("/orders/2", json={"item": "lamp"})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        away = await client.get("/ready")
        assert (away.status_code, away.json()) == (503, {"database": "ok", "kafka": "away"})
        assert (await client.get("/live")).status_code == 200
        await asyncio.to_thread(kafka.start_node, 0)
        async with asyncio.timeout(60):
            while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        assert (await client.put("/orders/2", json={"item": "lamp"})).status_code == 201

    in_process(database_url, kafka, use)
    assert sorted(read_topic(kafka.bootstrap_servers, TOPIC)) == sorted(table(database_url))


def test_an_order_whose_record_is_lost_is_not_called_unwritten(database_url: str, kafka: Emulator) -> None:
    lose = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, lambda: lose_decided(kafka.bootstrap_servers, TOPIC))

    async def use(client: httpx.AsyncClient) -> None:
        lost = await client.put("/orders/1", json={"item": "lamp"})
        assert lost.json() == {"detail": "this was written, but not announced; do not repeat it"}
        assert (lost.status_code, "Retry-After" in lost.headers) == (500, False)

    in_process(database_url, kafka, use, pause=lose)
    assert (table(database_url), read_topic(kafka.bootstrap_servers, TOPIC)) == ([("1", "lamp")], [])


@contextmanager
def service(database_url: str, kafka: Emulator) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "examples.fastapi_service", "--port", "0", "--lease-ms", "1000"),
            *("--database-url", database_url, "--bootstrap-servers", kafka.bootstrap_servers),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


@contextmanager
def row_is_held(database_url: str) -> Iterator[Callable[[], bool]]:
    """Hold the row of order 1, uncommitted, until the end; yield a check that a request waits for it."""
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    def one_waits() -> bool:
        with engine.connect() as aside:
            return bool(aside.scalar(sa.text(waiting)))

    with engine.connect() as connection:
        connection.execute(sa.text("INSERT INTO orders (id, item) VALUES (1, 'of somebody else')"))
        yield one_waits
        connection.rollback()


@pytest.mark.parametrize("ends", ["client", "service"])
def test_the_client_or_the_service_ends_in_the_middle_of_a_block(database_url: str, kafka: Emulator, ends: str) -> None:
    """The block goes on without its client; a service that is asked to end waits for it."""
    with service(database_url, kafka) as (process, url), ThreadPoolExecutor(1) as threads:
        assert httpx.put(f"{url}/orders/0", json={"item": "lamp"}).is_success
        with row_is_held(database_url) as one_waits:
            timeout = httpx.Timeout(60, read=1 if ends == "client" else 60)
            request = threads.submit(httpx.put, f"{url}/orders/1", json={"item": "lamp"}, timeout=timeout)
            until(one_waits)
            if ends == "service":
                process.terminate()
                until(lambda: _refuses(url))
            else:
                assert isinstance(request.exception(), httpx.ReadTimeout)
        expected = [("0", "lamp"), ("1", "lamp")]
        until(lambda: sorted(read_topic(kafka.bootstrap_servers, TOPIC)) == expected)
        if ends == "service":
            assert request.result().status_code == 201
            assert process.wait(60) == -signal.SIGTERM
    assert sorted(table(database_url)) == expected


def _refuses(url: str) -> bool:
    try:
        httpx.get(f"{url}/live")
    except httpx.TransportError:
        return True
    return False
