"""The publishing process vacuums the outbox's table, because the publisher reads past all deleted rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.delivery import Outbox
from dualwrite.recipes.pool import outbox_vacuum
from dualwrite.recipes.pool.outbox_vacuum import OutboxVacuum
from dualwrite.recipes.pool.runtime import TaskRuntime, ThreadRuntime
from dualwrite.testing.postgres import PostgresServer
from tests.crash.psycopg_scenario import PsycopgScenario, conninfo_of
from tests.recipes.outboxes import Open, assert_published, open_style, outbox_pool, scenario
from tests.recipes.pools import write
from tests.recipes.test_outbox_publisher import publisher_of
from tests.support.calls import Calls
from tests.support.conditions import until

__all__ = ["open_style", "scenario"]  # fixtures

VACUUMS: Final = sa.text(
    "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'kafka_transaction_outbox'"
    " AND schemaname = current_schema()"
)


def vacuums(scenario: PsycopgScenario) -> int:
    with scenario.database.aside.connect() as connection:
        return int(connection.scalar(VACUUMS) or 0)


@pytest.fixture(autouse=True)
def after_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_vacuum, "BLOCKS_TO_VACUUM", 3)


def test_the_outbox_is_vacuumed_after_many_blocks(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()
    for number in (1, 2):
        style.write(number)
    assert_published(scenario, 1, 2)
    assert vacuums(scenario) == 0
    style.write(3)
    until(lambda: vacuums(scenario) == 1)
    for number in (4, 5, 6):
        style.write(number)
    until(lambda: vacuums(scenario) == 2)
    assert_published(scenario, 1, 2, 3, 4, 5, 6)


def test_a_role_without_the_right_to_vacuum_publishes(
    scenario: PsycopgScenario, postgres_server: PostgresServer
) -> None:
    role = scenario.database.url.username
    with outbox_pool(scenario, Outbox(publishes=False)) as pool:
        write(pool, scenario, 0)  # makes the table
    with psycopg.connect(conninfo_of(postgres_server.url), autocommit=True) as admin:
        admin.execute(f"ALTER TABLE {role}.kafka_transaction_outbox OWNER TO CURRENT_USER")
        admin.execute(f"GRANT ALL ON {role}.kafka_transaction_outbox TO {role}")
        admin.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {role} TO {role}")
    with outbox_pool(scenario) as pool:
        database = Calls(publisher_of(pool).writes.database, "vacuum_outbox")
        for number in range(1, 7):
            write(pool, scenario, number)
        assert_published(scenario, *range(7))
        until(lambda: database.count > 0)
    assert vacuums(scenario) == 0


class Vacuumed:
    count = 0

    async def vacuum_outbox(self) -> None:
        self.count += 1


def test_a_vacuum_for_which_no_thread_can_be_started_is_done_later() -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    database: Any = Vacuumed()
    runtime: Any = SimpleNamespace(spawn=refuse)
    vacuum = OutboxVacuum("outbox", database=database, runtime=runtime)
    vacuum.note_published(3)
    runtime.spawn = ThreadRuntime.spawn
    vacuum.note_published(4)
    until(lambda: database.count == 1)


async def test_a_vacuum_that_is_cancelled_before_it_begins_is_done_later() -> None:
    database: Any = Vacuumed()
    vacuum = OutboxVacuum("outbox", database=database, runtime=TaskRuntime())
    vacuum.note_published(3)
    cancelled: Any = vacuum.background
    cancelled._task.cancel()
    await cancelled.join(60)
    vacuum.note_published(6)
    assert vacuum.background is not None
    await vacuum.background.join(60)
    assert database.count == 1
