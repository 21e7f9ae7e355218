"""The services among the examples are killed by SIGKILL again and again, and both sides agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from tests.examples.service_kills import SERVICES, kill_service
from tests.examples.service_site import Site
from tests.support.databases import unique

KILLS = 6


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("service", list(SERVICES))
def test_a_service(
    postgres_server: PostgresServer, emulator: Emulator, tmp_path: Path, service: str, instances: int
) -> None:
    site = Site(postgres_server, emulator, unique("kills").replace("-", "_"), tmp_path)
    assert kill_service(site, service, KILLS, seed=1, instances=instances).orders > 0
