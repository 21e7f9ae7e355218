"""Writers of one row publish in the order of their commits, with any transactional ids and under kills."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite import DualWriter, Outbox, TransactionAdmin
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Direct
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.leases import outbox_id_of
from tests.crash.killed import run_until_killed
from tests.crash.ordered_worker import KEYS, LEASE_MS, PREFIX, change, decide_and_die, work
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase
from tests.support.forked_processes import processes
from tests.support.kafka_ids import kafka_id_of
from tests.support.topics import read_topic

KILLS = 4
BETWEEN_KILLS = 30
OUTAGES = 3
TOPIC = "accounts"
OUTBOX: dict[str, Any] = {"delivery": Outbox()}


@pytest.fixture
def accounts(postgres: PostgresDatabase) -> PostgresDatabase:
    with postgres.aside.begin() as connection:
        connection.execute(sa.text("CREATE TABLE accounts (owner text PRIMARY KEY, version integer NOT NULL)"))
        for owner in KEYS:
            connection.execute(sa.text("INSERT INTO accounts VALUES (:owner, 0)"), {"owner": owner})
    return postgres


def versions(database: PostgresDatabase) -> dict[str, int]:
    with database.aside.connect() as connection:
        rows = connection.execute(sa.text("SELECT owner, version FROM accounts"))
        return {row.owner: row.version for row in rows}


def published(emulator: Emulator) -> dict[str, list[int]]:
    """Return the versions of each owner, in the order of the partition."""
    found: dict[str, list[int]] = {owner: [] for owner in KEYS}
    for owner, version in read_topic(emulator.bootstrap_servers, TOPIC):
        found[owner].append(int(version))
    return found


@contextmanager
def working(database: PostgresDatabase, emulator: Emulator, settings: dict[str, Any]) -> Iterator[ForkServerProcess]:
    url = database.url.render_as_string(hide_password=False)
    process = processes().Process(target=work, args=(url, emulator.bootstrap_servers, TOPIC, settings), daemon=True)
    process.start()
    yield process
    process.kill()
    process.join()


def write_under_kills(database: PostgresDatabase, emulator: Emulator, settings: dict[str, Any]) -> None:
    """Let two processes write, and kill and replace one of them again and again; then kill both."""
    with working(database, emulator, settings):
        for _ in range(KILLS):
            with working(database, emulator, settings):
                wait_for_more(database)


@pytest.mark.parametrize("settings", [{}, OUTBOX], ids=["direct", "outbox"])
def test_the_order_of_a_key_is_that_of_the_commits(
    accounts: PostgresDatabase, emulator: Emulator, settings: dict[str, Any]
) -> None:
    emulator.create_topic(TOPIC, 2)
    write_under_kills(accounts, emulator, settings)
    if settings is OUTBOX:
        assert_in_order_by_the_outbox(accounts, emulator)
    else:
        assert_in_order(accounts, emulator, settings)
        assert len(emulator.transactions()) >= 2, "one transactional id alone is always in order"


def test_a_publisher_that_is_killed_and_replaced(accounts: PostgresDatabase, emulator: Emulator) -> None:
    emulator.create_topic(TOPIC)
    with working(accounts, emulator, {"delivery": Outbox(publishes=False)}):
        for _ in range(KILLS):
            with working(accounts, emulator, OUTBOX):
                goal = records(emulator) + BETWEEN_KILLS
                until(lambda: records(emulator) >= goal)  # noqa: B023 - called before the next round
    assert_in_order_by_the_outbox(accounts, emulator)


def test_a_publisher_that_is_frozen_for_longer_than_its_lease(accounts: PostgresDatabase, emulator: Emulator) -> None:
    """The frozen publisher may hold the row, so that the other has to wait; it may also be fenced, and lead again."""
    emulator.create_topic(TOPIC)
    with working(accounts, emulator, OUTBOX) as first, working(accounts, emulator, OUTBOX) as second:
        until(lambda: records(emulator) >= BETWEEN_KILLS)
        for process in (first, second) * KILLS:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            wait_for_leases(accounts)
            os.kill(process.pid, signal.SIGCONT)
            wait_for_more(accounts)
    assert_in_order_by_the_outbox(accounts, emulator)


def test_the_order_of_a_key_survives_outages_of_kafka(accounts: PostgresDatabase, emulator: Emulator) -> None:
    """Blocks go to Kafka, to the outbox and back, in two processes of which one is killed again and again."""
    emulator.create_topic(TOPIC, 2)
    settings = {"delivery": Direct(when_kafka_is_away="store")}
    with working(accounts, emulator, settings):
        for _ in range(OUTAGES):
            with working(accounts, emulator, settings):
                wait_for_more(accounts)
                emulator.crash_node(0)
                wait_for_more(accounts)
            emulator.start_node(0)
            wait_for_more(accounts)
    assert_in_order(accounts, emulator, settings)
    ids = {transaction.transactional_id for transaction in emulator.transactions()}
    outbox = kafka_id_of(accounts.engine, outbox_id_of(PREFIX))
    assert outbox in ids, ids
    assert len(ids) >= 3, "blocks have gone to Kafka themselves too"


def wait_for_more(database: PostgresDatabase) -> None:
    """Wait for some more changes."""
    goal = sum(versions(database).values()) + BETWEEN_KILLS
    until(lambda: sum(versions(database).values()) >= goal)


def assert_in_order(database: PostgresDatabase, emulator: Emulator, settings: dict[str, Any]) -> None:
    """Publish the rest, and compare the order of each row's records with that of its changes."""
    with DualWriter(
        database.engine, prefix=PREFIX, lease_ms=LEASE_MS, bootstrap_servers=emulator.bootstrap_servers, **settings
    ) as pool:
        pool.recover()
        until(lambda: sum(map(len, published(emulator).values())) >= sum(versions(database).values()))
        in_database = versions(database)
    assert published(emulator) == {owner: list(range(1, last + 1)) for owner, last in in_database.items()}


def assert_in_order_by_the_outbox(database: PostgresDatabase, emulator: Emulator) -> None:
    assert_in_order(database, emulator, OUTBOX)
    ids = {transaction.transactional_id for transaction in emulator.transactions()}
    assert ids == {kafka_id_of(database.engine, outbox_id_of(PREFIX))}


def records(emulator: Emulator) -> int:
    return sum(map(len, published(emulator).values()))


def wait_for_leases(database: PostgresDatabase) -> None:
    """Wait until every lease would have expired that was not renewed since; by the database's clock."""
    with database.aside.connect() as connection:
        connection.exec_driver_sql(f"SELECT pg_sleep({2 * LEASE_MS / 1000})")


def decided_by_a_dead_process(accounts: PostgresDatabase, emulator: Emulator) -> DualWriter:
    """Leave version 1 of `anna` in doubt under the id `first`; return a writer with the id `second`."""
    emulator.create_topic(TOPIC)
    url = accounts.url.render_as_string(hide_password=False)
    run_until_killed(decide_and_die, url, emulator.bootstrap_servers, TOPIC)
    assert versions(accounts)["anna"] == 1
    return DualWriter(accounts.engine, bootstrap_servers=emulator.bootstrap_servers, transactional_id="second")


def recover_first(accounts: PostgresDatabase, emulator: Emulator) -> Outcome:
    with DualWriter(
        accounts.engine, bootstrap_servers=emulator.bootstrap_servers, transactional_id="first"
    ) as successor:
        (found,) = successor.recover()
        return found.outcome


def test_blocks_in_doubt_keep_their_place(accounts: PostgresDatabase, emulator: Emulator) -> None:
    with decided_by_a_dead_process(accounts, emulator) as second:
        change(second, TOPIC, "anna")
    assert published(emulator)["anna"] == []  # readers wait at the transaction in doubt
    assert recover_first(accounts, emulator) is Outcome.COMMITTED
    assert published(emulator)["anna"] == [1, 2]


def test_blocks_published_again_come_later(accounts: PostgresDatabase, emulator: Emulator) -> None:
    """The exception that docs/order.md names: a broker has aborted a decided transaction."""
    with decided_by_a_dead_process(accounts, emulator) as second:
        with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers) as admin:
            admin.force_terminate_transaction(kafka_id_of(accounts.engine, "first"))
        change(second, TOPIC, "anna")
    assert recover_first(accounts, emulator) is Outcome.REPAIRED
    assert published(emulator)["anna"] == [2, 1]
