"""Outboxes on other databases: lost commits; on MariaDB, order and a server that crashes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Outbox
from dualwrite.errors import OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.pool import outbox_publisher
from dualwrite.recipes.recovery.taking_out import take_out
from dualwrite.recipes.sql.outbox_elsewhere import OF_MYSQL
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from tests.crash.scenario import Scenario
from tests.recipes.outboxes import (
    assert_published,
    elsewhere,
    forgetful,
    in_order,
    outbox_pool,
    settings_for,
    waiting,
)
from tests.recipes.pools import QUIET_LEASE_MS, put, write
from tests.recipes.test_outbox_lost_commits import before_first_question, outbox_writes
from tests.support.conditions import until
from tests.support.databases import MariaDbDatabase, event_bodies
from tests.support.narrowing import current
from tests.support.servers.mariadb import MariaDbServer

__all__ = ["forgetful"]  # a fixture

SILENT: Final = Outbox(publishes=False)


@pytest.fixture(params=["mariadb", "sqlite"])
def scenario(request: pytest.FixtureRequest, emulator: Emulator) -> Scenario:
    return elsewhere(request.getfixturevalue(request.param), emulator)


@pytest.fixture
def on_mariadb(mariadb: MariaDbDatabase, emulator: Emulator) -> Scenario:
    return elsewhere(mariadb, emulator)


def publish_all(scenario: Scenario) -> None:
    with outbox_pool(scenario) as publisher:
        publisher.recover()
    assert waiting(scenario) == 0


# ---- commits without a response -------------------------------------------------------------------------------------


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the background rest, so that a block sends the next COMMIT."""
    monkeypatch.setattr(outbox_publisher, "_MOST_IDLE_S", 600.0)


@contextmanager
def silent_pool(scenario: Scenario, **settings: Any) -> Iterator[DualWriter]:
    """Yield a pool that has written block 1 without publishing it, through whose engine COMMIT may get lost.

    Its background has queried the backlog, and sends nothing more.
    """
    with outbox_pool(scenario, SILENT) as before:
        write(before, scenario, 0)
    settings = settings_for(scenario, SILENT, **{"lease_ms": QUIET_LEASE_MS} | settings)
    with DualWriter(scenario.database.engine, **settings) as pool:
        pool.recover()
        write(pool, scenario, 1)
        until(lambda: pool.status.outbox_blocks > 0)
        yield pool


def lose(pool: DualWriter, scenario: Scenario, number: int, *, applied: bool) -> DualTransaction:
    """Write a block whose COMMIT gets no response. Its error may be the database's or OutcomeUnknown."""
    with suppress(sa.exc.DBAPIError), pool.transaction() as tx:
        put(tx, scenario, number)
        scenario.database.lose_commit(applied=applied)
    return tx


def wake(pool: DualWriter) -> None:
    outbox = pool.pool.outbox
    assert outbox is not None
    outbox.wake()


def ended(applied: bool) -> Outcome:
    return Outcome.STORED if applied else Outcome.ROLLED_BACK


@pytest.mark.usefixtures("at_rest")
@pytest.mark.parametrize("applied", [True, False])
def test_a_block_gets_the_outcome_that_the_database_has(scenario: Scenario, applied: bool) -> None:
    with silent_pool(scenario) as pool:
        assert lose(pool, scenario, 2, applied=applied).outcome is ended(applied)
        write(pool, scenario, 3)
    publish_all(scenario)
    assert_published(scenario, 0, 1, *([2] if applied else []), 3)


@pytest.mark.usefixtures("at_rest", "forgetful")
@pytest.mark.parametrize("applied", [True, False])
def test_a_block_published_meanwhile_counts_as_stored(scenario: Scenario, applied: bool) -> None:
    with silent_pool(scenario) as pool:

        def publish() -> None:
            publish_all(scenario)
            with outbox_pool(scenario) as other:
                write(other, scenario, 3)
            publish_all(scenario)

        before_first_question(pool, publish)
        assert lose(pool, scenario, 2, applied=applied).outcome is ended(applied)
    assert_published(scenario, 0, 1, *([2] if applied else []), 3)


@pytest.mark.usefixtures("at_rest")
def test_a_block_taken_out_meanwhile_counts_as_stored(scenario: Scenario) -> None:
    with silent_pool(scenario) as pool:
        publish_all(scenario)

        def take_it_out() -> None:
            with scenario.database.aside.connect() as connection:
                seq = connection.scalar(sa.text("SELECT max(seq) FROM kafka_transaction_outbox"))
            assert take_out(scenario.database.aside, scenario.transactional_id, seq, apply=True).changed

        before_first_question(pool, take_it_out)
        assert lose(pool, scenario, 2, applied=True).outcome is Outcome.STORED
    assert waiting(scenario) == 0
    assert event_bodies(scenario.database) == ["0", "1", "2"]


@pytest.mark.usefixtures("at_rest", "forgetful")
@pytest.mark.parametrize("applied", [True, False])
def test_a_block_whose_note_is_deleted_stays_unknown(scenario: Scenario, applied: bool) -> None:
    with silent_pool(scenario) as pool:

        def let_time_pass() -> None:
            publish_all(scenario)
            for number in (3, 4):
                with scenario.database.aside.begin() as connection:
                    connection.execute(sa.text("UPDATE kafka_transaction_outbox SET stored_at_ms = 0 WHERE seq < 0"))
                with outbox_pool(scenario) as other:
                    write(other, scenario, number)
                publish_all(scenario)

        before_first_question(pool, let_time_pass)
        with pytest.raises(OutcomeUnknown, match="tables for the changes of the block"):
            lose(pool, scenario, 2, applied=applied)
        assert not outbox_writes(pool).has_unresolved
    assert_published(scenario, 0, 1, *([2] if applied else []), 3, 4)


@pytest.mark.usefixtures("at_rest")
@pytest.mark.parametrize("commits", [True, False])
def test_a_foreign_block_with_the_same_number(on_mariadb: Scenario, commits: bool) -> None:
    """A server that crashed gives numbers again. While that transaction is open, nothing is known."""
    scenario = on_mariadb
    with silent_pool(scenario, resolve_timeout_ms=500) as pool, scenario.database.aside.connect() as stranger:

        def take_number() -> None:
            stranger.execute(
                sa.text(
                    "INSERT INTO kafka_transaction_outbox (transactional_id, seq, stored_at_ms, records)"
                    " SELECT transactional_id, max(seq) + 1, 0, 'another' FROM kafka_transaction_outbox"
                )
            )

        before_first_question(pool, take_number)
        with pytest.raises(OutcomeUnknown, match="its database transaction has not ended"), pool.transaction() as tx:
            put(tx, scenario, 2)
            scenario.database.lose_commit(applied=False)
        assert current(tx.outcome) is None
        if commits:
            stranger.commit()
        else:
            stranger.rollback()
        wake(pool)
        until(lambda: tx.outcome is not None)
        assert current(tx.outcome) is Outcome.ROLLED_BACK
    assert event_bodies(scenario.database) == ["0", "1"]


# ---- order ----------------------------------------------------------------------------------------------------------

LEVELS: Final = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
BLOCKS: Final = 12


def test_blocks_of_one_row_are_published_in_the_order_of_their_commits(on_mariadb: Scenario) -> None:
    """At each isolation level, by nine threads."""
    scenario = on_mariadb
    with scenario.database.aside.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE account (version integer NOT NULL) ENGINE=InnoDB")
        connection.exec_driver_sql("INSERT INTO account VALUES (0)")

    def change(pool: DualWriter) -> None:
        for _ in range(BLOCKS):
            with pool.transaction() as tx:
                tx.session.execute(sa.text("UPDATE account SET version = version + 1"))
                version = tx.session.scalar(sa.text("SELECT version FROM account"))
                tx.send(scenario.topic, key="k", value=str(version))

    engines = [sa.create_engine(scenario.database.url, isolation_level=level) for level in LEVELS]
    pools = [DualWriter(engine, **settings_for(scenario)) for engine in engines]
    try:
        with ThreadPoolExecutor(9) as threads:
            for done in [threads.submit(change, pool) for pool in pools * 3]:
                done.result()
        until(lambda: waiting(scenario) == 0)
    finally:
        for pool in pools:
            pool.close()
    for engine in engines:
        engine.dispose()
    assert in_order(scenario) == [str(number) for number in range(1, 9 * BLOCKS + 1)]


def test_an_open_block_does_not_delay_a_batch(on_mariadb: Scenario) -> None:
    """InnoDB would wait for its row if it scanned the table to delete a large batch."""
    scenario = on_mariadb
    with scenario.database.aside.begin() as root:
        root.exec_driver_sql("SET GLOBAL innodb_lock_wait_timeout = 2")
    with outbox_pool(scenario, SILENT) as pool:
        write(pool, scenario, 1)
    fill = sa.text(
        "INSERT INTO kafka_transaction_outbox (transactional_id, stored_at_ms, records) SELECT was.transactional_id,"
        " was.stored_at_ms, was.records FROM kafka_transaction_outbox AS was, seq_1_to_2000 WHERE was.seq = 1"
    )
    with scenario.database.aside.connect() as stranger:
        stranger.execute(fill)
        stranger.commit()
        stranger.execute(sa.text(OF_MYSQL.add), {"id": scenario.transactional_id, "content": b""})
        with outbox_pool(scenario) as publisher:
            publisher.recover()
            assert waiting(scenario) == 0
            assert publisher.status.background_failures_total == 0
        stranger.rollback()
    assert len(in_order(scenario)) == 2001


# ---- servers that crash ---------------------------------------------------------------------------------------------


def test_the_server_crashes_before_blocks_are_published(emulator: Emulator) -> None:
    """It gives the numbers of blocks again that it has lost."""
    with MariaDbServer.start() as server:
        scenario = elsewhere(MariaDbDatabase(server), emulator)
        newest = sa.text("SELECT max(seq) FROM kafka_transaction_outbox")
        with outbox_pool(scenario, SILENT) as pool:
            for number in (1, 2):
                write(pool, scenario, number)
        with scenario.database.aside.connect() as lost:
            lost.execute(sa.text(OF_MYSQL.add), {"id": scenario.transactional_id, "content": b"lost"})
            number_lost = lost.scalar(newest)
            server.crash()
            lost.invalidate()
        scenario.database.aside.dispose()
        with outbox_pool(scenario, SILENT) as pool:
            write(pool, scenario, 3)
        with scenario.database.aside.connect() as reading:
            assert reading.scalar(newest) == number_lost
        publish_all(scenario)
        assert_published(scenario, 1, 2, 3)
        assert in_order(scenario) == ["1", "2", "3"]
        scenario.database.close()
