"""Pools with an outbox in the styles of each library, and the required result once all blocks are published."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Final

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Outbox
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sql import outbox_steps
from dualwrite.recipes.sql.outbox_elsewhere import OUTBOX_SQL
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.psycopg_scenario import PsycopgScenario, conninfo_of
from tests.crash.scenario import AnyScenario, Scenario
from tests.crash.styles import STYLES, STYLES_ELSEWHERE, Style
from tests.recipes.pools import prefix_of, written
from tests.support.conditions import until
from tests.support.databases import Database, PostgresDatabase, unique
from tests.support.topics import read_topic

SHORT_LEASE_MS: Final = 300

Open = Callable[..., Style]


def scenario_of(database: PostgresDatabase, emulator: Emulator) -> PsycopgScenario:
    """Return a scenario with the transactional id of the outbox's publisher."""
    return PsycopgScenario(database, emulator, transactional_id=f"{unique('obox')}-outbox-0")


@pytest.fixture
def scenario(postgres: PostgresDatabase, emulator: Emulator) -> PsycopgScenario:
    return scenario_of(postgres, emulator)


@pytest.fixture(params=STYLES)
def open_style(request: pytest.FixtureRequest, scenario: PsycopgScenario) -> Iterator[Open]:
    yield from _opening(request.param, scenario)


def _opening(name: str, scenario: AnyScenario) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_one(outbox: Outbox | None = None, *, url: sa.URL | None = None, **settings: Any) -> Style:
            url = url or scenario.database.engine.url
            return stack.enter_context(Style(name, url, scenario.topic, **settings_for(scenario, outbox, **settings)))

        yield open_one


# ---- on each database; a module imports these as `scenario` and `open_style` ----------------------------------------


@pytest.fixture(params=[*STYLES, *STYLES_ELSEWHERE])
def any_style(request: pytest.FixtureRequest) -> str:
    style: str = request.param
    return style


@pytest.fixture
def scenario_anywhere(request: pytest.FixtureRequest, emulator: Emulator) -> AnyScenario:
    """The scenario of the style of a test, or on PostgreSQL if it has none."""
    if "any_style" not in request.fixturenames:
        return scenario_of(request.getfixturevalue("postgres"), emulator)
    style = request.getfixturevalue("any_style")
    if style in STYLES:
        return scenario_of(request.getfixturevalue("postgres"), emulator)
    return elsewhere(request.getfixturevalue("mariadb" if style == "mariadb" else "sqlite"), emulator)


@pytest.fixture
def open_any_style(any_style: str, scenario: AnyScenario) -> Iterator[Open]:
    yield from _opening(any_style, scenario)


def elsewhere(database: Database, emulator: Emulator) -> Scenario:
    """Return a scenario on another database."""
    return Scenario(database, emulator, transactional_id=f"{unique('obox')}-outbox-0")


class _PoolWithEngine(DualWriter):
    """A pool that owns its engine."""

    def close(self, timeout_s: float = 30.0) -> None:
        super().close(timeout_s)
        self.backend.engine.dispose()


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each batch delete old notes, not one at random."""
    monkeypatch.setattr(outbox_steps, "_FORGETS_ONE_IN", 1)


def pool_prefix(scenario: AnyScenario) -> str:
    return prefix_of(scenario).removesuffix("-outbox")


def settings_for(scenario: AnyScenario, outbox: Outbox | None = None, **settings: Any) -> dict[str, Any]:
    return {
        "prefix": pool_prefix(scenario),
        "bootstrap_servers": scenario.emulator.bootstrap_servers,
        "delivery": outbox or Outbox(),
        "lease_ms": SHORT_LEASE_MS,
        "lock_timeout_ms": 60_000,
        "max_block_ms": 60_000,
        **settings,
    }


def outbox_pool(scenario: AnyScenario, outbox: Outbox | None = None, **settings: Any) -> Any:
    """Return a pool that no fault of the scenario's database touches."""
    if not isinstance(scenario, PsycopgScenario):
        engine = sa.create_engine(scenario.database.url, connect_args=patient(scenario.database))
        return _PoolWithEngine(engine, **settings_for(scenario, outbox, **settings))
    return PsycopgDualWriter(conninfo_of(scenario.database.url), **settings_for(scenario, outbox, **settings))


def in_tasks(scenario: PsycopgScenario, use: Callable[[AsyncPsycopgDualWriter], Any], **settings: Any) -> None:
    """Use such a pool of asyncio."""

    async def run() -> None:
        url = conninfo_of(scenario.database.url)
        async with asyncio.timeout(120), AsyncPsycopgDualWriter(url, **settings_for(scenario, **settings)) as pool:
            await use(pool)

    asyncio.run(run())


def patient(database: Database) -> dict[str, Any]:
    """Return arguments of a connection that waits as long for SQLite's write lock as others do for a row lock."""
    return {"timeout": 60} if database.url.get_backend_name() == "sqlite" else {}


def waiting(scenario: AnyScenario) -> int:
    """Return how many blocks wait in the outbox; those of the last batch, and those taken out, do not."""
    with scenario.database.aside.connect() as connection:
        try:
            is_waiting = OUTBOX_SQL[connection.dialect.name].is_waiting
            found = connection.scalar(sa.text(f"SELECT count(*) FROM kafka_transaction_outbox WHERE {is_waiting}"))
        except (sa.exc.ProgrammingError, sa.exc.OperationalError):  # no pool has begun
            return 0
        return int(found or 0)


def in_order(scenario: AnyScenario) -> list[str]:
    """Return the values that a read_committed consumer sees."""
    return [value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]


def is_all_published(scenario: AnyScenario) -> bool:
    if waiting(scenario):
        return False
    with suppress(AssertionError):
        scenario.assert_nothing_open()
        return True
    return False


def assert_published(scenario: AnyScenario, *expected: object) -> None:
    """Wait until no block is left to publish; then table and topic have the expected values, each once."""
    until(lambda: is_all_published(scenario))
    assert written(scenario) == {str(each) for each in expected}
