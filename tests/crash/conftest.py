from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from tests.crash.asyncpg_scenario import AsyncpgScenario, asyncpg_scenario
from tests.crash.awaited import AwaitedScenario, awaited_scenario
from tests.crash.psycopg_scenario import AwaitedPsycopgScenario, PsycopgScenario, awaited_psycopg_scenario
from tests.crash.scenario import AnyScenario, Scenario
from tests.support.databases import Database, MariaDbDatabase, PostgresDatabase, SqliteDatabase


@pytest.fixture(params=["postgres", "sqlite", "psycopg"])
def scenario(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AnyScenario]:
    """A scenario for each blocking writer and database: `DualWriter` on two, and psycopg alone.

    "asyncpg" is for tests that ask for it: its writer has the blocking names, but not all of them.
    """
    if request.param == "asyncpg":
        database: PostgresDatabase = request.getfixturevalue("postgres")
        with asyncpg_scenario(database, emulator, loop_of_each_writer=True) as made:
            yield made
    else:
        with opened(request.param, request, emulator, tmp_path) as scenario:
            yield scenario


BLOCKING: Final = ("postgres", "mariadb", "sqlite", "psycopg")
"""Each blocking writer and database: `DualWriter` on three, and psycopg alone."""

DRIVERS_OF_SQLALCHEMY: Final = ("psycopg", "asyncpg", "aiosqlite")
AWAITED_DRIVERS: Final = (*DRIVERS_OF_SQLALCHEMY, "psycopg-alone", "asyncpg-alone")
AWAITED: Final = tuple(f"asyncio {driver}" for driver in AWAITED_DRIVERS)

AnyAwaited = AwaitedScenario | AwaitedPsycopgScenario | AsyncpgScenario


@pytest.fixture(params=AWAITED_DRIVERS)
def awaited(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AnyAwaited]:
    """A scenario for each awaited driver, with and without SQLAlchemy."""
    with opened(f"asyncio {request.param}", request, emulator, tmp_path) as scenario:
        yield scenario


@contextmanager
def opened(name: str, request: pytest.FixtureRequest, emulator: Emulator, folder: Path) -> Iterator[Any]:
    """Open one of the scenarios of `BLOCKING` and `AWAITED`."""
    database: Database
    if "sqlite" in name:
        database = SqliteDatabase(folder)
    elif "mariadb" in name:
        database = MariaDbDatabase(request.getfixturevalue("mariadb_server"))
    else:
        database = PostgresDatabase(request.getfixturevalue("postgres_server"))
    scenarios: dict[str, Callable[[Any, Emulator], AbstractContextManager[Any]]] = {
        "asyncio psycopg-alone": awaited_psycopg_scenario,
        "asyncio asyncpg-alone": asyncpg_scenario,
        **{f"asyncio {driver}": partial(awaited_scenario, driver=driver) for driver in DRIVERS_OF_SQLALCHEMY},
    }
    if name in scenarios:
        with scenarios[name](database, emulator) as scenario:
            yield scenario
    else:
        yield (PsycopgScenario if name == "psycopg" else Scenario)(database, emulator)
    database.close()
