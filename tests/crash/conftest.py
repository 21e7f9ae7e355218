from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from tests.crash.awaited import AwaitedScenario, awaited_scenario
from tests.support.databases import PostgresDatabase, SqliteDatabase


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
