"""The FastAPI and FastStream examples are killed by SIGKILL again and again, and both sides agree."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from tests.examples.service_kills import Site, kill_fastapi, kill_faststream
from tests.support.databases import unique

KILLS = 6


@pytest.fixture
def site(postgres_server: PostgresServer, emulator: Emulator) -> Site:
    return Site(postgres_server, emulator, unique("kills").replace("-", "_"))


def test_a_service_on_fastapi(site: Site) -> None:
    assert kill_fastapi(site, KILLS, seed=1) > 0


@pytest.mark.parametrize("library", ["aiokafka", "confluent"])
def test_a_service_on_faststream(site: Site, library: str) -> None:
    assert kill_faststream(site, library, KILLS, seed=1) > 0
