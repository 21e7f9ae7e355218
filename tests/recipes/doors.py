"""Every door to a dual write: one block each, whose steps are the same."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from django.db import DatabaseError, connections

from dualwrite.broker_emulator.emulator import Emulator
from tests.crash.conftest import AWAITED, BLOCKING, opened
from tests.crash.scenario import AnyScenario
from tests.django.project import Shop, shop_on
from tests.support.databases import Database, MariaDbDatabase, PostgresDatabase, event_bodies
from tests.support.topics import read_topic

INSERT: Final = "INSERT INTO events (id, event_key, body) VALUES ({0}, 'k', '{0}')"


@dataclass
class Block:
    """An open block."""

    door: Door
    tx: Any

    def execute(self, text: str) -> None:
        """Send SQL text as an application does."""
        self.door.execute(self.tx, text)

    def insert(self, number: int) -> None:
        self.execute(INSERT.format(number))

    def send(self, number: int) -> None:
        self.door.send(self.tx, str(number))

    def put(self, number: int) -> None:
        """Write a row and a record."""
        self.insert(number)
        self.send(number)


class Door:
    """A way to a dual write on one database, and the results on both sides."""

    database_error: type[Exception] = DatabaseError

    def __init__(self, name: str, database: Database, emulator: Emulator, topic: str) -> None:
        self.name = name
        self.database = database
        self._emulator = emulator
        self._topic = topic

    def block(self) -> AbstractContextManager[Block]:
        raise NotImplementedError

    def execute(self, tx: Any, text: str) -> None:
        raise NotImplementedError

    def send(self, tx: Any, value: str) -> None:
        raise NotImplementedError

    @property
    def rows(self) -> list[str]:
        return event_bodies(self.database)

    @property
    def records(self) -> list[str]:
        return [value for _, value in read_topic(self._emulator.bootstrap_servers, self._topic)]


class ScenarioDoor(Door):
    """A block of a writer, on a connection or Session."""

    def __init__(self, name: str, scenario: AnyScenario, writer: Any) -> None:
        super().__init__(name, scenario.database, scenario.emulator, scenario.topic)
        self.database_error = scenario.database_error
        self._scenario: Any = scenario
        self._writer = writer

    @contextmanager
    def block(self) -> Iterator[Block]:
        with self._writer.transaction() as tx:
            yield Block(self, tx)

    def execute(self, tx: Any, text: str) -> None:
        session = getattr(tx, "session", None)
        done = tx.connection.execute(text) if session is None else session.execute(sa.text(text))
        if inspect.isawaitable(done):
            self._scenario.runner.run(_awaited(done))

    def send(self, tx: Any, value: str) -> None:
        tx.send(self._topic, key="k", value=value)


async def _awaited(result: Any) -> Any:
    return await result


class DjangoDoor(Door):
    def __init__(self, name: str, shop: Shop) -> None:
        super().__init__(name, shop.database, shop.emulator, shop.topic)
        self._alias = shop.alias
        self._shop = shop

    @contextmanager
    def block(self) -> Iterator[Block]:
        with self._shop.atomic():
            yield Block(self, None)

    def execute(self, tx: Any, text: str) -> None:
        with connections[self._alias].cursor() as cursor:
            cursor.execute(text)

    def send(self, tx: Any, value: str) -> None:
        from dualwrite.recipes.django import send

        send(self._topic, value, "k", using=self._alias)


DOORS: Final = (*BLOCKING, *AWAITED, "django postgres", "django mariadb")


@contextmanager
def opened_door(name: str, request: pytest.FixtureRequest, emulator: Emulator, folder: Path) -> Iterator[Door]:
    """Open a door on a database of its own."""
    if name.startswith("django"):
        is_postgres = "postgres" in name
        server = request.getfixturevalue("postgres_server" if is_postgres else "mariadb_server")
        database = PostgresDatabase(server) if is_postgres else MariaDbDatabase(server)
        with shop_on(database, emulator) as shop:
            yield DjangoDoor(name, shop)
        database.close()
        return
    with opened(name, request, emulator, folder) as scenario, scenario.writer() as writer:
        writer.recover()  # on SQLite the row could not be made while the block holds the file
        yield ScenarioDoor(name, scenario, writer)
