"""The lives of services that end by a signal between any two steps of a dual write.

Each life is a process of its own, forked from one that has loaded the libraries. It sends itself the signal at a pause
point whose number is drawn before, counted over all requests and messages.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.recipes.core.pause_points import PausePoint

DJANGO_SHOP: Final = Path(__file__).parents[2] / "examples" / "django_shop"
LEASE_MS: Final = 1000

_log = logging.getLogger(__name__)
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["django", "examples.fastapi_service", "examples.faststream_service", __name__])


MOST_SENDS: Final = 3
"""How many of the records of a dual write count: else those of a large one would hide all other points."""


SLEEPS_S: Final = 2.5
"""How long a life is frozen: longer than its leases last, so that others take its transactions over meanwhile."""


@dataclass
class Death:
    """Sends this process a signal at the pause point with that number; 0: never. It may be frozen at another one."""

    at: int
    signal: signal.Signals = signal.SIGKILL
    sleeps_at: int = 0
    _reached: int = field(default=0)
    _sends: int = field(default=0)

    def __call__(self, point: PausePoint) -> None:
        self._sends = self._sends + 1 if point is PausePoint.AFTER_SEND else 0
        if self._sends > MOST_SENDS:
            return
        self._reached += 1
        if self._reached == self.sleeps_at:
            _log.warning("asleep %s", point)
            subprocess.Popen(["sh", "-c", f"sleep {SLEEPS_S}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._reached == self.at:
            _log.warning("%s %s", self.signal.name, point)
            os.kill(os.getpid(), self.signal)


@dataclass(frozen=True)
class Surroundings:
    """The common surroundings of a service's lives: the database, the broker, and the directory of their logs."""

    url: str
    servers: str
    logs: Path

    def log_of(self, life: str) -> Path:
        return self.logs / f"{life}.log"

    def end_of(self, life: str) -> str:
        """Return a life's last log lines."""
        path = self.log_of(life)
        lines = path.read_text().splitlines() if path.exists() else ["  (there is none)"]
        return "\n".join([f"the end of the log of life {life}:", *lines[-60:]])

    def log_to(self, life: str) -> None:
        """Write this process's logs and output to a file of its own."""
        log = os.open(self.log_of(life), os.O_CREAT | os.O_WRONLY)
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")


def start_life(live: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """Start a life; it ends with this process at the latest."""
    process = _forks.Process(target=live, args=arguments, daemon=True)
    process.start()
    return process


def live_fastapi(around: Surroundings, life: str, death: Death, listener: socket.socket) -> None:
    """Serve orders by HTTP until death."""
    import uvicorn

    from examples.fastapi_service import create_app

    around.log_to(life)
    app = create_app(around.url, around.servers, lease_ms=LEASE_MS, pause=death)
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[listener])


def live_faststream(around: Surroundings, life: str, death: Death, library: str, instance: str | None) -> None:
    """Bill orders from a topic until death."""
    from sqlalchemy.ext.asyncio import create_async_engine

    from examples.faststream_service import create_app

    around.log_to(life)

    async def run() -> None:
        engine = create_async_engine(around.url)
        app = create_app(engine, around.servers, library=library, instance=instance, lease_ms=LEASE_MS, pause=death)
        await app.run(log_level=logging.INFO)

    asyncio.run(run())


def shop_environment(url: sa.URL, servers: str) -> dict[str, str]:
    """Return the variables by which the shop's project finds its database and Kafka."""
    host = url.query.get("host") or url.host or ""
    assert isinstance(host, str)
    return {
        "SHOP_DATABASE": url.database or "",
        "SHOP_DATABASE_HOST": host,
        "SHOP_DATABASE_PORT": str(url.port or ""),
        "SHOP_DATABASE_USER": url.username or "",
        "SHOP_DATABASE_PASSWORD": url.password or "",
        "SHOP_KAFKA": servers,
        "SHOP_LEASE_MS": str(LEASE_MS),
    }


def set_up_django(around: Surroundings, death: Death) -> None:
    """Load the shop's project in this process."""
    os.environ |= {"DJANGO_SETTINGS_MODULE": "settings", **shop_environment(sa.make_url(around.url), around.servers)}
    sys.path.insert(0, str(DJANGO_SHOP))
    import django
    from django.conf import settings

    settings.LOGGING_CONFIG = None
    settings.DUALWRITE["default"]["pause"] = death
    django.setup()


def migrate_django(around: Surroundings) -> None:
    """Create the shop's tables, with lamps for every order."""
    set_up_django(around, Death(0))
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders_item VALUES ('lamp', 1000000)")


def live_django(around: Surroundings, life: str, death: Death, listener: socket.socket) -> None:
    """Serve orders by HTTP until death, in a thread for each connection."""
    around.log_to(life)
    set_up_django(around, death)
    from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
    from django.core.wsgi import get_wsgi_application

    class Handler(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadedWSGIServer(listener.getsockname(), Handler, bind_and_activate=False)
    server.socket = listener
    server.server_name, server.server_port = listener.getsockname()
    server.setup_environ()
    server.set_app(get_wsgi_application())

    def end(*_: object) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    server.serve_forever()
