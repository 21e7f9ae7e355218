"""Cancellation at every suspension of `AsyncPsycopgDualWriter`: the tests of `AsyncDualWriter`, on psycopg alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from tests.crash.psycopg_scenario import AwaitedPsycopgScenario, awaited_psycopg_scenario
from tests.crash.test_cancellation import (
    test_a_dual_write_cancelled_at_every_suspension as test_a_dual_write_cancelled_at_every_suspension,
)
from tests.crash.test_cancellation import (
    test_a_recovery_cancelled_at_every_suspension as test_a_recovery_cancelled_at_every_suspension,
)
from tests.crash.test_cancellation import (
    test_the_very_first_use_cancelled_at_every_suspension as test_the_very_first_use_cancelled_at_every_suspension,
)
from tests.support.databases import PostgresDatabase


@pytest.fixture
def awaited(postgres_server: PostgresServer, emulator: Emulator) -> Iterator[AwaitedPsycopgScenario]:
    database = PostgresDatabase(postgres_server)
    with awaited_psycopg_scenario(database, emulator) as scenario:
        yield scenario
    database.close()
