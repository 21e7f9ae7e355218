"""Behind a PgBouncer in transaction mode each transaction may run on another connection of the server.

CHAOS_SECONDS=600 for longer than the usual 20 seconds, which are shared out among the kinds of pools.
"""

from __future__ import annotations

import os
import random
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.cli.doctor_checks import Check, Verdict
from dualwrite.cli.doctor_database import database_checks
from dualwrite.recipes.sqlalchemy.engines import background_engine
from tests.pgbouncer.workload import CALM_S, KINDS, TOPIC, Workload
from tests.support.servers.pgbouncer import PgBouncer

SECONDS = float(os.environ.get("CHAOS_SECONDS", "20")) / len(KINDS)
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**31)))
QUIET_S = 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_prepared_statements_do_not_leak_and_both_sides_agree(
    pooler: PgBouncer, direct: sa.Engine, emulator: Emulator, kind: str
) -> None:
    """Without faults no block may fail: a prepared statement would be another client's, or missing."""
    emulator.create_topic(TOPIC)
    load = Workload(pooler, direct, emulator, SEED)
    load.run(kind, QUIET_S, strike=False)
    assert load.tally.told.keys() <= {"committed", "rolled-back"}
    assert load.tally.rows > 0


@pytest.mark.timeout(SECONDS + 3 * CALM_S)
@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_agree_after_every_cut(pooler: PgBouncer, direct: sa.Engine, emulator: Emulator, kind: str) -> None:
    print(f"CHAOS_SEED={SEED}")
    emulator.create_topic(TOPIC)
    load = Workload(pooler, direct, emulator, SEED)
    load.run(kind, SECONDS, strike=True)
    print(load.tally)
    assert load.tally.rows > 0


def test_background_work_beside_blocks_prepares_no_statements(pooler: PgBouncer) -> None:
    engine = background_engine(sa.create_engine(pooler.url))
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        assert driver.prepare_threshold is None
    engine.dispose()


def _pooler_check(url: sa.URL) -> Check:
    engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args={"prepare_threshold": None})
    (found,) = (check for check in database_checks(engine) if check.what == "connection pooler")
    return found


def test_doctor_names_the_needs_of_transaction_mode(pooler: PgBouncer, direct: sa.Engine) -> None:
    found = _pooler_check(pooler.url)
    assert found.verdict is Verdict.WARN
    assert found.remedy is not None
    assert "prepare_threshold" in found.remedy


@pytest.mark.parametrize("pooler", [{"mode": "session"}], indirect=True)
def test_doctor_has_nothing_to_say_against_session_mode(pooler: PgBouncer, direct: sa.Engine) -> None:
    assert _pooler_check(pooler.url).verdict is Verdict.OK


def test_doctor_sees_that_there_is_no_pooler(direct: sa.Engine) -> None:
    found = _pooler_check(direct.url)
    assert (found.verdict, found.found) == (Verdict.OK, "none")


@pytest.mark.parametrize("pooler", [{"mode": "transaction", "pool_size": 1}], indirect=True)
def test_a_prepared_statement_is_there_for_every_client(pooler: PgBouncer, direct: sa.Engine) -> None:
    """The reason why we prepare no statement: if this fails, the advice of the page is out of date."""
    conninfo = pooler.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo, prepare_threshold=0) as one, psycopg.connect(conninfo, prepare_threshold=0) as other:
        one.execute("SELECT 'mine', %s::int", (1,))
        one.commit()
        with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
            other.execute("SELECT 'theirs', %s::int", (1,))
