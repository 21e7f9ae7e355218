"""A transaction that fails unseen right before COMMIT, on drivers alone: PostgreSQL answers with ROLLBACK then."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest

from dualwrite.delivery import Direct, Outbox
from dualwrite.errors import TransactionDoomedError
from dualwrite.outcome import Outcome
from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.core import blocking
from dualwrite.recipes.postgres.transaction import PostgresTransaction
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.crash.styles import INSERT
from tests.recipes.outboxes import outbox_pool, scenario, settings_for
from tests.support.conditions import until
from tests.support.databases import event_bodies
from tests.support.topics import read_topic
from tests.support.writers import KINDS, closed, entered, got

__all__ = ["scenario"]  # a fixture

_FAILS = "SELECT * FROM no_such_table"


class Failing:
    """Lets the transaction of a connection fail right before its COMMIT is sent, unseen by any watch."""

    connection: Any = None


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    made = Failing()
    commit = PostgresTransaction.commit

    async def fail_and_commit(transaction: PostgresTransaction) -> None:
        connection = driver.unwrapped(transaction.connection)
        if connection is made.connection:
            made.connection = None
            if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
                connection.pgconn.exec_(_FAILS.encode())
            else:
                with suppress(asyncpg.PostgresError):
                    await driver.execute(connection, _FAILS)
        await commit(transaction)

    monkeypatch.setattr(PostgresTransaction, "commit", fail_and_commit)
    return made


STYLES = {
    "dual writes": {"delivery": Direct()},
    "outbox": {"delivery": Outbox(publishes=False)},
}
STYLE = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)


def assert_on_both_sides(scenario: PsycopgScenario, *expected: str) -> None:
    with outbox_pool(scenario) as publisher:
        publisher.recover()
    assert event_bodies(scenario.database) == list(expected)
    until(lambda: len(_in_topic(scenario)) >= len(expected))
    assert _in_topic(scenario) == list(expected)


def _in_topic(scenario: PsycopgScenario) -> list[str]:
    return [str(value) for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]


@STYLE
@pytest.mark.parametrize("has_records", [True, False], ids=["with records", "without"])
@pytest.mark.parametrize("name", ["psycopg", "psycopg-awaited", "asyncpg-alone"])
def test_on_a_driver(
    scenario: PsycopgScenario, failing: Failing, name: str, style: dict[str, object], has_records: bool
) -> None:
    kind = KINDS[name]

    async def write_three() -> None:
        source = kind.source(scenario.database.url)
        pool = kind.writer(source, **settings_for(scenario) | style)
        for number in (1, 2, 3):
            with suppress(TransactionDoomedError):
                async with entered(pool.transaction()) as tx:
                    await got(kind.execute(tx, INSERT.format(number)))
                    if has_records or number != 2:
                        tx.send(scenario.topic, key="k", value=str(number))
                    failing.connection = driver.unwrapped(tx.connection) if number == 2 else None
            assert (tx.outcome is Outcome.ROLLED_BACK) is (number == 2)
        await closed(pool, source)

    asyncio.run(write_three()) if kind.is_awaited else blocking.run(write_three())
    assert_on_both_sides(scenario, "1", "3")
