"""Every door to a dual write: one block each, whose steps are the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from django.db import DatabaseError, connections

from dualwrite.broker_emulator.emulator import Emulator
from tests.crash.conftest import opened
from tests.django.project import Shop, shop_on
from tests.recipes.faces import FACES, Block, Door, Face
from tests.support.databases import MariaDbDatabase, PostgresDatabase


class DjangoDoor(Door):
    database_error = DatabaseError

    def __init__(self, name: str, shop: Shop) -> None:
        super().__init__(name, shop.database, shop.emulator, shop.topic)
        self._alias = shop.alias
        self._shop = shop

    @contextmanager
    def block(self) -> Iterator[Block]:
        with self._shop.atomic():
            yield Block(self, None)

    def execute(self, tx: Any, text: str, way: str) -> None:
        with connections[self._alias].cursor() as cursor:
            cursor.execute(text)

    def send(self, tx: Any, value: str) -> None:
        from dualwrite.recipes.django import send

        send(self._topic, value, "k", using=self._alias)


DOORS: Final = (*FACES, "django postgres", "django mariadb")


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
        yield Face(name, scenario, writer)
