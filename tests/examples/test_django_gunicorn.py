"""The shop with Django on gunicorn, whose workers are killed, replaced and reloaded while orders arrive."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from tests.examples.django_shop import Shop, place_orders, serving

STOCK = 1000
WORKERS = 2
GUNICORN = ("-m", "gunicorn", "wsgi", "--bind", "127.0.0.1:{port}", "--workers", str(WORKERS), "--no-control-socket")
THREADS = ("--worker-class", "gthread", "--threads", "4")


@pytest.fixture
def shop(postgres_server: PostgresServer, emulator: Emulator) -> Shop:
    made = Shop(postgres_server, emulator)
    made.open_for_business(STOCK)
    return made


OF_THE_MASTER = 999
CONFIGURATION = f"""
def when_ready(server):  # in the process that forks the workers
    from django.db import transaction
    from orders.models import Item
    from orders.views import place
    with transaction.atomic():
        place({OF_THE_MASTER}, Item.objects.get(name="lamp"))
"""


@pytest.mark.parametrize("threads", [(), THREADS], ids=["sync", "gthread"])
@pytest.mark.parametrize("is_preloaded", [False, True], ids=["", "preload"])
def test_workers_come_and_go(shop: Shop, tmp_path: Path, threads: tuple[str, ...], is_preloaded: bool) -> None:
    """If the application is preloaded, the forking process has used its connection and its ids before."""
    options, placed = ["--max-requests", "25", *threads], list(range(120))
    if is_preloaded:
        (tmp_path / "configuration.py").write_text(CONFIGURATION)
        options += ["--preload", "--config", str(tmp_path / "configuration.py")]
        placed.append(OF_THE_MASTER)
    with serving(shop, tmp_path / "log", *GUNICORN, *options) as server:
        strikes = dict.fromkeys((7, 20, 21, 45, 80), server.kill_a_worker) | {60: server.replace_workers}
        place_orders(server, range(120), after=strikes)
        shop.assert_both_sides_have(placed, stock=STOCK)
        assert len(server.killed) == 5
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.log.read_text()
    assert shop.leased() == 0  # processes that end in order give their ids back
    assert "0 found, 0 left" in shop.done("dualwrite_recover", "--min-age", "0")
