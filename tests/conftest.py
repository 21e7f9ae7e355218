"""Servers that the tests share. Each starts on this machine, by itself, on a free port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.mariadb import MariaDbServer
from dualwrite.testing.postgres import PostgresServer
from dualwrite.testing.server_unavailable import ServerUnavailableError, servers_are_required
from tests.support.databases import Database, MariaDbDatabase, PostgresDatabase, SqliteDatabase


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer.start()
    except ServerUnavailableError as error:
        if servers_are_required():
            raise
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    try:
        server = MariaDbServer.start()
    except ServerUnavailableError as error:
        if servers_are_required():
            raise
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as broker:
        yield broker


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    made: Database
    if request.param == "postgres":
        made = PostgresDatabase(request.getfixturevalue("postgres_server"))
    elif request.param == "mariadb":
        made = MariaDbDatabase(request.getfixturevalue("mariadb_server"))
    else:
        made = SqliteDatabase(tmp_path)
    yield made
    made.close()
