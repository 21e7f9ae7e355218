from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.client.records import traces
from dualwrite.recipes.core import metrics
from dualwrite.recipes.core.repairability import Repairability
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.awaited import AwaitedScenario
from tests.crash.conftest import DRIVERS_OF_SQLALCHEMY, opened
from tests.crash.scenario import Scenario
from tests.recipes.faces import FACES, Face
from tests.recipes.heard import Heard
from tests.support.databases import Database


@pytest.fixture
def scenario(database: Database, emulator: Emulator) -> Scenario:
    return Scenario(database, emulator)


@pytest.fixture(params=DRIVERS_OF_SQLALCHEMY)
def awaited(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AwaitedScenario]:
    """A scenario for `AsyncDualWriter` on each of its drivers."""
    with opened(f"asyncio {request.param}", request, emulator, tmp_path) as scenario:
        yield scenario


@pytest.fixture
def writer(scenario: Scenario) -> Iterator[DualWriter]:
    with scenario.writer() as made:
        yield made


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[Face]:
    """A writer of each kind."""
    with opened(request.param, request, emulator, tmp_path) as scenario, scenario.writer() as writer:
        yield Face(request.param, scenario, writer)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    for observed in (metrics.availabilities, metrics.pools):
        monkeypatch.setattr(observed, "_by_id", {})  # of this test alone
    made = Heard()
    monkeypatch.setattr(metrics, "instruments", lambda: made.instruments)
    monkeypatch.setattr(traces, "tracer", lambda: made.tracer)
    return made


@pytest.fixture
def nothing_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks be decided that could not be repaired: as before a topic was compacted, or a right was revoked."""

    async def check(*_: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(Repairability, "check", check)
