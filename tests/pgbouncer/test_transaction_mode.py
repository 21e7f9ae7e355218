"""Behind a PgBouncer in transaction mode each transaction may run on another connection of the server.

CHAOS_SECONDS=600 for longer than the usual 20 seconds, which are shared out among the kinds of pools.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.lease_table import create_lease_table
from dualwrite.recipes.state_table import create_state_table
from dualwrite.testing.pgbouncer import PgBouncer
from dualwrite.testing.postgres import PostgresServer
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.pgbouncer.workload import CALM_S, KINDS, TOPIC, Workload, events
from tests.support.unavailable import skip

SECONDS = float(os.environ.get("CHAOS_SECONDS", "20")) / len(KINDS)
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**31)))
QUIET_S = 1.5


@pytest.fixture
def pooler(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    try:
        made = PgBouncer(postgres_server.create_database(f"bounced_{uuid.uuid4().hex[:8]}"))
    except ServerUnavailableError as error:
        skip(error)
    with made:
        yield made


@pytest.fixture
def direct(pooler: PgBouncer, postgres_server: PostgresServer) -> Iterator[sa.Engine]:
    """Past the pooler."""
    engine = sa.create_engine(postgres_server.url.set(database=pooler.url.database))
    create_state_table(engine)
    create_lease_table(engine)
    events.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("kind", KINDS)
def test_statements_are_ones_own_and_both_sides_agree(
    pooler: PgBouncer, direct: sa.Engine, emulator: Emulator, kind: str
) -> None:
    """Nothing strikes, so nothing may fail: a prepared statement would be somebody else's, or not be there."""
    emulator.create_topic(TOPIC)
    load = Workload(pooler, direct, emulator, SEED)
    load.run(kind, QUIET_S, strike=False)
    assert load.tally.told.keys() <= {"Outcome.COMMITTED", "committed", "rolled-back", "Outcome.ROLLED_BACK"}
    assert load.tally.rows > 0


@pytest.mark.timeout(SECONDS + 3 * CALM_S)
@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_agree_whatever_is_cut(pooler: PgBouncer, direct: sa.Engine, emulator: Emulator, kind: str) -> None:
    print(f"CHAOS_SEED={SEED}")
    emulator.create_topic(TOPIC)
    load = Workload(pooler, direct, emulator, SEED)
    load.run(kind, SECONDS, strike=True)
    print(load.tally)
    assert load.tally.rows > 0
