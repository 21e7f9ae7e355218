from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from tests.crash.awaited import AwaitedScenario, awaited_scenario
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.crash.scenario import AnyScenario, Scenario
from tests.support.databases import PostgresDatabase, SqliteDatabase


@pytest.fixture(params=["postgres", "sqlite", "psycopg"])
def scenario(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AnyScenario]:
    """A scenario for each blocking writer and database: `DualWriter` on two, and psycopg alone."""
    database = (
        SqliteDatabase(tmp_path)
        if request.param == "sqlite"
        else PostgresDatabase(request.getfixturevalue("postgres_server"))
    )
    yield (PsycopgScenario if request.param == "psycopg" else Scenario)(database, emulator)
    database.close()


@pytest.fixture(params=["psycopg", "asyncpg", "aiosqlite"])
def awaited(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AwaitedScenario]:
    """A scenario for each awaited driver."""
    driver: str = request.param
    database = (
        SqliteDatabase(tmp_path)
        if driver == "aiosqlite"
        else PostgresDatabase(request.getfixturevalue("postgres_server"))
    )
    with awaited_scenario(database, emulator, driver) as scenario:
        yield scenario
    database.close()
