from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from tests.crash.asyncpg_scenario import AsyncpgScenario, asyncpg_scenario
from tests.crash.awaited import AwaitedScenario, awaited_scenario
from tests.crash.psycopg_scenario import AwaitedPsycopgScenario, PsycopgScenario, awaited_psycopg_scenario
from tests.crash.scenario import AnyScenario, Scenario
from tests.support.databases import PostgresDatabase, SqliteDatabase


@pytest.fixture(params=["postgres", "sqlite", "psycopg"])
def scenario(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AnyScenario]:
    """A scenario for each blocking writer and database: `DualWriter` on two, and psycopg alone.

    "asyncpg" is for tests that ask for it: its writer has the blocking names, but not all of them.
    """
    database = (
        SqliteDatabase(tmp_path)
        if request.param == "sqlite"
        else PostgresDatabase(request.getfixturevalue("postgres_server"))
    )
    if request.param == "asyncpg":
        assert isinstance(database, PostgresDatabase)
        with asyncpg_scenario(database, emulator, loop_of_each_writer=True) as made:
            yield made
    else:
        yield (PsycopgScenario if request.param == "psycopg" else Scenario)(database, emulator)
    database.close()


DRIVERS_OF_SQLALCHEMY: Final = ("psycopg", "asyncpg", "aiosqlite")

AnyAwaited = AwaitedScenario | AwaitedPsycopgScenario | AsyncpgScenario


@pytest.fixture(params=[*DRIVERS_OF_SQLALCHEMY, "psycopg-alone", "asyncpg-alone"])
def awaited(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AnyAwaited]:
    """A scenario for each awaited driver, with and without SQLAlchemy."""
    with opened_for(request, emulator, tmp_path) as scenario:
        yield scenario


@contextmanager
def opened_for(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AnyAwaited]:
    """Open the scenario of the driver that a fixture's parameter names."""
    driver: str = request.param
    database = (
        SqliteDatabase(tmp_path)
        if driver == "aiosqlite"
        else PostgresDatabase(request.getfixturevalue("postgres_server"))
    )
    opened: AbstractContextManager[AnyAwaited]
    if driver.endswith("-alone"):
        assert isinstance(database, PostgresDatabase)
        opened = (asyncpg_scenario if driver == "asyncpg-alone" else awaited_psycopg_scenario)(database, emulator)
    else:
        opened = awaited_scenario(database, emulator, driver)
    with opened as scenario:
        yield scenario
    database.close()
