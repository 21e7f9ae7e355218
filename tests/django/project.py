"""Django inside the tests' process, set up once; each test adds databases of its own, as aliases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import django
import pymysql
import sqlalchemy as sa
from django.conf import settings
from django.db import connections, transaction

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.pause_points import PauseHook
from tests.recipes.pools import QUIET_LEASE_MS, AnyPool
from tests.support.databases import Database, event_bodies, unique
from tests.support.topics import read_topic

INSERT = "INSERT INTO events (id, event_key, body) VALUES (%s, 'k', %s)"


def set_up() -> None:
    """Configure Django in this process; harmless when repeated."""
    if not settings.configured:
        pymysql.install_as_MySQLdb()
        settings.configure(
            DATABASES={},
            DUALWRITE={},
            INSTALLED_APPS=["dualwrite.recipes.django", "tests.django"],
            LOGGING_CONFIG=None,
            USE_TZ=True,
        )
        django.setup()


def settings_of(url: sa.URL, **more: Any) -> dict[str, Any]:
    """Return the entry of DATABASES for a database."""
    if url.get_backend_name() == "mysql":
        return _settings_of_mysql(url, **more)
    options = dict(url.query) | more.pop("OPTIONS", {})
    host = options.pop("host", None) or url.host or ""
    named = {"NAME": url.database, "USER": url.username, "PASSWORD": url.password, "HOST": host, "PORT": url.port or ""}
    engine = "dualwrite.recipes.django.postgresql"
    return {"ENGINE": engine, "OPTIONS": options, **named, **more}


def _settings_of_mysql(url: sa.URL, **more: Any) -> dict[str, Any]:
    options = url.get_dialect()().create_connect_args(url)[1] | more.pop("OPTIONS", {})
    named = {name.upper(): str(options.pop(name, "")) for name in ("user", "password", "host", "port")}
    return {
        "ENGINE": "dualwrite.recipes.django.mysql",
        "NAME": options.pop("database"),
        "OPTIONS": options,
        **named,
        **more,
    }


def add_alias(alias: str, url: sa.URL, dualwrite: dict[str, Any], **more: Any) -> None:
    """Add a database to the settings."""
    set_up()
    databases = connections.settings
    databases[alias] = settings_of(url, **more)
    connections.configure_settings({"default": {}, **databases})
    settings.DUALWRITE[alias] = dualwrite


def drop_alias(alias: str) -> None:
    """Take a database out of the settings, and close the connections of this thread and of the pool."""
    from dualwrite.recipes.django.pools import close_pools

    connections[alias].close()
    del connections[alias]
    close_pools(alias)
    del connections.settings[alias], settings.DUALWRITE[alias]


def pool_on(alias: str) -> AnyPool:
    """Return the pool of this process for a database."""
    from dualwrite.recipes.django.pools import pool_of
    from dualwrite.recipes.django.wrapper import DualWriteWrapper

    connection = connections[alias]
    assert isinstance(connection, DualWriteWrapper)
    pool = pool_of(connection)
    assert isinstance(pool, AnyPool)
    return pool


@dataclass
class Shop:
    """One database, one topic, and writes to both."""

    database: Database
    emulator: Emulator
    alias: str
    topic: str = field(default_factory=lambda: unique("topic"))

    def put(self, number: int) -> DualWrite:
        """Write a row and a record in the current transaction."""
        from dualwrite.recipes.django import current_dual_write, send

        self.insert(number)
        send(self.topic, str(number), "k", using=self.alias)
        return current_dual_write(self.alias)

    def insert(self, number: int) -> None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(INSERT, (number, str(number)))

    @property
    def pool(self) -> AnyPool:
        return pool_on(self.alias)

    def atomic(self, **options: Any) -> Any:
        return transaction.atomic(using=self.alias, **options)

    def on_commit(self, function: Callable[[], object]) -> None:
        transaction.on_commit(function, using=self.alias)

    def written(self) -> list[str]:
        """Return the values in the table and in the topic. Fails if they differ."""
        in_table, in_topic = self.on_each_side()
        assert in_table == in_topic
        return in_table

    def on_each_side(self) -> tuple[list[str], list[str]]:
        """Return the values in the table, and those in the topic."""
        in_topic = [value for _, value in read_topic(self.emulator.bootstrap_servers, self.topic)]
        return sorted(event_bodies(self.database)), sorted(in_topic)


@contextmanager
def shop_on(
    database: Database, emulator: Emulator, *, through_proxy: bool = True, pause: PauseHook | None = None, **more: Any
) -> Iterator[Shop]:
    """Yield a shop under an alias of its own. `more` goes to DATABASES, in `dualwrite` to DUALWRITE."""
    alias = unique("shop").replace("-", "_")
    given = {
        "bootstrap_servers": emulator.bootstrap_servers,
        "lease_ms": QUIET_LEASE_MS,
        "lock_timeout_ms": 60_000,
        "max_block_ms": 60_000,
        "pause": pause,
        **more.pop("dualwrite", {}),
    }
    add_alias(alias, database.engine.url if through_proxy else database.url, given, **more)
    shop = Shop(database, emulator, alias)
    emulator.create_topic(shop.topic)
    try:
        yield shop
    finally:
        drop_alias(alias)
