"""Blocks that conflict are published in the order of their commits, by any publisher, under kills and freezes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess

from dualwrite import DualWriter, Outbox
from dualwrite.broker_emulator.emulator import Emulator
from tests.crash.ordered_worker import LEASE_MS, PREFIX, work
from tests.crash.test_key_order import TOPIC, accounts, published, versions
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase
from tests.support.forked_processes import processes

__all__ = ["accounts"]  # a fixture

ROUNDS = 4
BETWEEN = 60


@contextmanager
def working(
    database: PostgresDatabase, emulator: Emulator, outbox: Outbox | None = None
) -> Iterator[ForkServerProcess]:
    url = database.url.render_as_string(hide_password=False)
    arguments = (url, emulator.bootstrap_servers, TOPIC, {"delivery": outbox or Outbox()})
    process = processes().Process(target=work, args=arguments, daemon=True)
    process.start()
    yield process
    process.kill()
    process.join()


def changes(database: PostgresDatabase) -> int:
    return sum(versions(database).values())


def records(emulator: Emulator) -> int:
    return sum(map(len, published(emulator).values()))


def assert_in_order(database: PostgresDatabase, emulator: Emulator) -> None:
    """Publish the rest, when all processes are dead; then each row has its versions, each once, in order."""
    with DualWriter(
        database.engine,
        prefix=PREFIX,
        lease_ms=LEASE_MS,
        delivery=Outbox(),
        bootstrap_servers=emulator.bootstrap_servers,
    ) as pool:
        until(lambda: (pool.status.publishes_outbox, pool.recover()) == (True, []))
    in_database = versions(database)
    assert published(emulator) == {owner: list(range(1, last + 1)) for owner, last in in_database.items()}
    ids = {transaction.transactional_id.partition(".")[0] for transaction in emulator.transactions()}
    assert ids == {f"{PREFIX}-outbox-0"}


def test_a_publisher_that_is_killed_and_replaced(accounts: PostgresDatabase, emulator: Emulator) -> None:
    emulator.create_topic(TOPIC)
    with working(accounts, emulator, Outbox(publishes=False)):
        for _ in range(ROUNDS):
            with working(accounts, emulator):
                goal = records(emulator) + BETWEEN
                until(lambda: records(emulator) >= goal)  # noqa: B023 - called before the next round
    assert_in_order(accounts, emulator)


def test_processes_that_are_killed_and_replaced(accounts: PostgresDatabase, emulator: Emulator) -> None:
    """Either may be the publisher."""
    emulator.create_topic(TOPIC)
    with working(accounts, emulator):
        for _ in range(ROUNDS):
            with working(accounts, emulator):
                goal = changes(accounts) + BETWEEN
                until(lambda: changes(accounts) >= goal)  # noqa: B023 - called before the next round
    assert_in_order(accounts, emulator)


def test_a_publisher_that_is_frozen_for_longer_than_its_lease(accounts: PostgresDatabase, emulator: Emulator) -> None:
    """It may hold the row, so that the other one has to wait for it; it may also be fenced, and lead again."""
    emulator.create_topic(TOPIC)
    with working(accounts, emulator) as first, working(accounts, emulator) as second:
        until(lambda: records(emulator) >= BETWEEN)
        for process in (first, second) * ROUNDS:
            assert process.pid is not None
            until_written = changes(accounts) + BETWEEN
            os.kill(process.pid, signal.SIGSTOP)
            wait_for_leases(accounts)
            os.kill(process.pid, signal.SIGCONT)
            until(lambda: changes(accounts) >= until_written)  # noqa: B023 - called before the next round
    assert_in_order(accounts, emulator)


def wait_for_leases(database: PostgresDatabase) -> None:
    """Wait until every lease would have expired that was not renewed since; by the database's clock."""
    with database.aside.connect() as connection:
        connection.exec_driver_sql(f"SELECT pg_sleep({2 * LEASE_MS / 1000})")
