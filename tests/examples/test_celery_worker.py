"""The Celery worker: its processes are killed between the steps of their tasks, and both sides agree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from examples.celery_worker import TOPIC, app, place_order, queue_in
from tests.support.conditions import until
from tests.support.databases import unique
from tests.support.topics import read_topic

ORDERS = 8


@contextmanager
def worker(shop: dict[str, str], module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(
        command,
        env={**os.environ, **shop},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # its prefork processes are killed with it
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def shop(postgres_server: PostgresServer, emulator: Emulator, tmp_path: Path) -> dict[str, str]:
    """The environment of a worker. The queue is a folder, which the tests of Celery itself use too."""
    emulator.create_topic(TOPIC)
    url = postgres_server.create_database(unique("celery").replace("-", "_"))
    app.conf.broker_transport_options = queue_in(str(tmp_path))
    return {
        "SHOP_DATABASE_URL": url.render_as_string(hide_password=False),
        "SHOP_BOOTSTRAP_SERVERS": emulator.bootstrap_servers,
        "SHOP_QUEUE": str(tmp_path),
    }


def rows(shop: dict[str, str]) -> Counter[tuple[str, str]]:
    engine = sa.create_engine(shop["SHOP_DATABASE_URL"], poolclass=sa.NullPool)
    if not sa.inspect(engine).has_table("orders"):
        return Counter()
    with engine.connect() as connection:
        return Counter((str(key), item) for key, item in connection.execute(sa.text("SELECT id, item FROM orders")))


def records(shop: dict[str, str]) -> Counter[tuple[str, str]]:
    return Counter(read_topic(shop["SHOP_BOOTSTRAP_SERVERS"], TOPIC))


def test_processes_are_killed_and_tasks_repeated(shop: dict[str, str]) -> None:
    """Each task is sent twice, as a client does that got no response; each process dies after one or two of them."""
    everything = Counter((str(number), f"item {number}") for number in range(ORDERS))
    for number in [*range(ORDERS), *range(ORDERS)]:
        place_order.delay(number, f"item {number}")
    with worker(shop, "tests.examples.dying_celery_worker"):
        until(lambda: rows(shop) == everything, timeout_s=200)
        until(lambda: records(shop) == everything)
    assert (rows(shop), records(shop)) == (everything, everything)


def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.celery_worker"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "10 orders are placed\n"), done.stderr
