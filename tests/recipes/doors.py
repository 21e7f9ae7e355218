"""Every door to a dual write: one block each, whose steps are the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from django.db import DatabaseError, connections

from dualwrite.broker_emulator.emulator import Emulator
from tests.crash.asyncpg_scenario import asyncpg_scenario
from tests.crash.awaited import awaited_scenario
from tests.crash.psycopg_scenario import PsycopgScenario, awaited_psycopg_scenario
from tests.crash.scenario import AnyScenario, Scenario
from tests.django.project import Shop, shop_on
from tests.support.databases import Database, MariaDbDatabase, PostgresDatabase, SqliteDatabase, event_bodies
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

    name = ""
    database_error: type[Exception] = DatabaseError

    def __init__(self, database: Database, emulator: Emulator, topic: str) -> None:
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

    def __init__(self, scenario: AnyScenario, writer: Any) -> None:
        super().__init__(scenario.database, scenario.emulator, scenario.topic)
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
    def __init__(self, shop: Shop) -> None:
        super().__init__(shop.database, shop.emulator, shop.topic)
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


Opens = Callable[[Any, Emulator], AbstractContextManager[Any]]


@contextmanager
def _at_once(scenario: AnyScenario) -> Iterator[AnyScenario]:
    yield scenario


_SCENARIOS: Final[dict[str, Opens]] = {
    "psycopg": lambda database, emulator: _at_once(PsycopgScenario(database, emulator)),
    "psycopg-awaited": awaited_psycopg_scenario,
    "asyncpg": asyncpg_scenario,
    "sqlalchemy-postgres": lambda database, emulator: _at_once(Scenario(database, emulator)),
    "sqlalchemy-postgres-psycopg-awaited": lambda database, emulator: awaited_scenario(database, emulator, "psycopg"),
    "sqlalchemy-postgres-asyncpg": lambda database, emulator: awaited_scenario(database, emulator, "asyncpg"),
    "sqlalchemy-mariadb": lambda database, emulator: _at_once(Scenario(database, emulator)),
    "sqlalchemy-sqlite": lambda database, emulator: _at_once(Scenario(database, emulator)),
    "sqlalchemy-aiosqlite": lambda database, emulator: awaited_scenario(database, emulator, "aiosqlite"),
}

DOORS: Final = (*_SCENARIOS, "django-postgres", "django-mariadb")


def database_of(door: str, request: pytest.FixtureRequest, folder: Path) -> Database:
    if "sqlite" in door:
        return SqliteDatabase(folder)
    if "mariadb" in door:
        return MariaDbDatabase(request.getfixturevalue("mariadb_server"))
    return PostgresDatabase(request.getfixturevalue("postgres_server"))


@contextmanager
def opened(door: str, database: Database, emulator: Emulator) -> Iterator[Door]:
    with ExitStack() as stack:
        if door.startswith("django"):
            yield DjangoDoor(stack.enter_context(shop_on(database, emulator)))
            return
        scenario = stack.enter_context(_SCENARIOS[door](database, emulator))
        writer = stack.enter_context(scenario.writer())
        writer.recover()  # on SQLite the row could not be made while the block holds the file
        yield ScenarioDoor(scenario, writer)
