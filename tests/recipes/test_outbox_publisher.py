"""The background that publishes an outbox: it goes on after any failure, gives way, and sends few queries."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import CloseBefore, Error, Fault
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Outbox
from dualwrite.errors import DatabaseWentBackError, DualWriteError, IllegalStateError, OutcomeUnknown, StateRowError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.store import Backlog
from dualwrite.recipes.pool import outbox_publisher
from dualwrite.recipes.pool.outbox_publisher import OutboxPublisher
from dualwrite.recipes.psycopg import driver as psycopg_driver
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sql import pinned_tables, postgres
from dualwrite.recipes.sqlalchemy import own_statements
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.outbox_worker import AtPointOf, is_publisher
from tests.crash.psycopg_scenario import INSERT, PsycopgScenario, conninfo_of
from tests.producer.tiers import TIERS
from tests.recipes.away import kafka_away
from tests.recipes.outboxes import (
    SHORT_LEASE_MS,
    Open,
    assert_published,
    forgetful,
    in_order,
    in_tasks,
    open_style,
    outbox_pool,
    pool_prefix,
    scenario,
    scenario_of,
    settings_for,
    waiting,
)
from tests.recipes.pools import QUIET_LEASE_MS, LeaseTable, put, write
from tests.recipes.test_outbox_lost_commits import execute, locked_row, lose_commit, outbox_writes
from tests.support.calls import Calls
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase, event_bodies
from tests.support.narrowing import current

__all__ = ["forgetful", "open_style", "scenario"]  # fixtures

NOWHERE: Final = "127.0.0.1:1"
"""An address without a broker."""


of_both_kinds = pytest.mark.parametrize("open_style", ["psycopg", "sqlalchemy-awaited"], indirect=True)
"""For threads, and for asyncio."""


def publisher_of(pool: Any) -> OutboxPublisher:
    publisher: OutboxPublisher | None = pool.pool.outbox
    assert publisher is not None
    return publisher


def write_elsewhere(scenario: PsycopgScenario, *numbers: int) -> None:
    """Write blocks in a process that does not publish."""
    with outbox_pool(scenario, Outbox(publishes=False)) as pool:
        for number in numbers:
            write(pool, scenario, number)


# ---- it goes on -----------------------------------------------------------------------------------------------------


class TokenServiceError(Exception):
    """As the listeners of an application raise that get a token for each connection."""


def test_errors_that_are_not_the_databases(scenario: PsycopgScenario) -> None:
    engine = sa.create_engine(scenario.database.url)
    is_away = threading.Event()

    @sa.event.listens_for(engine, "do_connect")
    def get_token(*connecting: Any) -> None:
        if is_away.is_set():
            raise TokenServiceError

    with DualWriter(engine, **settings_for(scenario)) as pool:
        write(pool, scenario, 1)
        assert_published(scenario, 1)
        is_away.set()
        execute(
            scenario,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = current_user AND pid <> pg_backend_pid()",
        )
        until(lambda: publisher_of(pool)._failures >= 2)  # the heartbeat does not count there
        assert isinstance(publisher_of(pool).last_error, TokenServiceError)
        is_away.clear()
        write_elsewhere(scenario, 2)  # so that no block of this process wakes the background
        assert_published(scenario, 1, 2)
        assert pool.status.publishes_outbox
    engine.dispose()


async def write_awaited(pool: AsyncPsycopgDualWriter, scenario: PsycopgScenario, number: int) -> None:
    async with pool.transaction() as tx:
        await tx.connection.execute(INSERT, (number, str(number)))
        tx.send(scenario.topic, key="k", value=str(number))


async def cancel_publisher() -> None:
    (task,) = [each for each in asyncio.all_tasks() if each.get_name().endswith("-publisher")]
    task.cancel()
    await asyncio.wait([task])


def background() -> dict[str, asyncio.Task[Any]]:
    named = {each.get_name(): each for each in asyncio.all_tasks()}
    return {name: task for name, task in named.items() if name.startswith("dualwrite-")}


def test_tasks_that_were_cancelled_are_started_again(scenario: PsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriter) -> None:
        await write_awaited(pool, scenario, 1)
        await asyncio.to_thread(assert_published, scenario, 1)
        before = background()
        for task in before.values():
            task.cancel()
        await asyncio.wait(before.values())
        await write_awaited(pool, scenario, 2)
        assert background().keys() == before.keys()
        assert any(name.endswith("-resolver") for name in before)
        await asyncio.to_thread(assert_published, scenario, 1, 2)
        await cancel_publisher()
        await pool.recover()
        await write_awaited(pool, scenario, 3)
        await asyncio.to_thread(assert_published, scenario, 1, 2, 3)

    in_tasks(scenario, use)


def test_recover_raises_when_the_background_ends(scenario: PsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriter) -> None:
        await write_awaited(pool, scenario, 1)
        await asyncio.to_thread(assert_published, scenario, 1)
        with locked_row(scenario):
            recovering = asyncio.create_task(pool.recover())
            await asyncio.to_thread(until, lambda: publisher_of(pool)._callers == 1)
            await cancel_publisher()
            with pytest.raises(IllegalStateError, match="has ended"):
                await recovering

    in_tasks(scenario, use)


def test_recover_raises_in_each_of_several_threads(scenario: PsycopgScenario) -> None:
    settings: dict[str, Any] = {"bootstrap_servers": NOWHERE, "max_block_ms": 500, "lease_ms": QUIET_LEASE_MS}
    with outbox_pool(scenario, **settings) as pool, ThreadPoolExecutor(3) as threads:
        write(pool, scenario, 1)
        errors = [each.exception(60) for each in [threads.submit(pool.recover) for _ in range(3)]]
        assert all(isinstance(error, DualWriteError) for error in errors), errors


# ---- commits of Kafka that are not confirmed ------------------------------------------------------------------------


@contextmanager
def fault(emulator: Emulator, fault: Fault) -> Iterator[None]:
    handle = emulator.faults.add(fault)
    yield
    assert handle.hits
    handle.remove()


NO_COMMIT: Final = Fault(api="EndTxn", predicate=lambda request: request.committed, action=CloseBefore(), count=None)
"""An abort goes through: a batch whose Produce took longer than `max_block_ms` is sent again."""

REFUSAL: Final = Fault(api="Produce", action=Error("INVALID_RECORD"), count=None)


def test_an_unconfirmed_batch_becomes_visible_without_another_block(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario, max_block_ms=4_000, lease_ms=QUIET_LEASE_MS) as pool:
        write(pool, scenario, 1)
        assert_published(scenario, 1)
        with fault(scenario.emulator, NO_COMMIT):
            write(pool, scenario, 2)
            until(lambda: waiting(scenario) == 0)
            until(lambda: pool.status.last_background_error is not None)
            assert in_order(scenario) == ["1"]
        assert_published(scenario, 1, 2)


# ---- failures that do not stop it -----------------------------------------------------------------------------------


@contextmanager
def unresolvable(pool: PsycopgDualWriter) -> Iterator[None]:
    """Let no lost commit be resolved."""
    writes: Any = outbox_writes(pool)

    async def fail(*given: Any) -> bool:
        raise psycopg.OperationalError("the database restarts")

    genuine, writes._was_committed = writes._was_committed, fail
    yield
    writes._was_committed = genuine


@pytest.mark.usefixtures("asks_twice")
def test_a_lost_commit_that_cannot_be_resolved(scenario: PsycopgScenario) -> None:
    begun: list[Any] = []
    with outbox_pool(scenario) as pool:
        write(pool, scenario, 1)
        with unresolvable(pool):
            with pytest.raises(OutcomeUnknown):
                lose_commit(pool, scenario, 2, begun=begun.append)
            until(lambda: "the database restarts" in (pool.status.last_background_error or ""))
            write(pool, scenario, 3)
            assert_published(scenario, 1, 2, 3)
            assert current(begun[0].outcome) is None
        until(lambda: begun[0].outcome is Outcome.STORED)
        until(lambda: pool.status.last_background_error is None)


def test_the_status_shows_the_error_of_publishing_although_blocks_succeed(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario) as pool:
        write(pool, scenario, 1)
        assert_published(scenario, 1)
        with fault(scenario.emulator, REFUSAL):
            write(pool, scenario, 2)
            until(lambda: bool(pool.status.refused))
            sweeps = Calls(pool.pool.maintenance._leases, "adopt")
            until(lambda: sweeps.count >= 2)  # the first of them has ended then
            assert pool.pool.counts.last_background_error is None
            assert "StoredBlockRefusedError" in (pool.status.last_background_error or "")
        pool.recover()
        assert pool.status.last_background_error is None
        assert_published(scenario, 1, 2)


@pytest.mark.parametrize("tier", [Tier.KEEP_PREPARED, Tier.STORED_PAIR])
def test_a_database_that_goes_back_is_reported_once_and_nothing_is_published_from_it(
    postgres: PostgresDatabase, caplog: pytest.LogCaptureFixture, tier: Tier
) -> None:
    """However often the publisher tries: on tier 1 only its own memory shows that a later row was decided."""
    with Emulator(config=TIERS[tier]) as emulator:
        scenario = scenario_of(postgres, emulator)
        row, outbox = " WHERE transactional_id = :id", scenario.transactional_id
        with outbox_pool(scenario, lease_ms=SHORT_LEASE_MS) as pool:
            write(pool, scenario, 1)
            assert_published(scenario, 1)
            columns = "prepared_transaction_state", "manifest"
            backup = {
                name: execute(scenario, f"SELECT {name} FROM kafka_transaction_state{row}", id=outbox)
                for name in columns
            }
            write(pool, scenario, 2)
            assert_published(scenario, 1, 2)
            for name, value in backup.items():
                execute(scenario, f"UPDATE kafka_transaction_state SET {name} = :value{row}", value=value, id=outbox)
            write(pool, scenario, 3)
            rounds = publisher_of(pool)._rounds
            until(lambda: publisher_of(pool)._rounds >= rounds + 30)
            with pytest.raises(DatabaseWentBackError):
                pool.recover()
            assert pool.status.background_failures_total == 0
            assert in_order(scenario) == ["1", "2"]
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


# ---- the publisher --------------------------------------------------------------------------------------------------


def test_a_publisher_that_cannot_reach_kafka_leaves_the_outbox_to_another(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario, bootstrap_servers=NOWHERE, max_block_ms=500) as isolated:
        write(isolated, scenario, 1)
        until(lambda: isolated.status.publishes_outbox)
        with outbox_pool(scenario) as other:
            write(other, scenario, 2)
            assert_published(scenario, 1, 2)
            assert other.status.publishes_outbox


def test_failures_a_day_apart_do_not_end_the_lease(scenario: PsycopgScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Fault(api="Produce", action=Error("TRANSACTION_ABORTABLE"), count=None)
    with outbox_pool(scenario, lease_ms=QUIET_LEASE_MS) as pool:
        for days in range(2):
            clock = SimpleNamespace(monotonic=lambda ahead_s=86_400 * days: time.monotonic() + ahead_s)
            monkeypatch.setattr(outbox_publisher, "time", clock)
            with fault(scenario.emulator, failure):
                write(pool, scenario, days)
                until(lambda: pool.status.outbox_blocks == 1)  # it is queried last
                assert pool.status.publishes_outbox
            assert_published(scenario, *range(days + 1))


# ---- caches ---------------------------------------------------------------------------------------------------------

CACHES: Final[dict[str, Any]] = {
    "names of tables": pinned_tables._qualified,
    "statements of psycopg": psycopg_driver.pyformat,
    "numbered statements": postgres.numbered,
    "statements of SQLAlchemy": own_statements.cached_text,
}


@of_both_kinds
@pytest.mark.usefixtures("forgetful")
def test_statements_do_not_fill_caches(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()

    def publish(numbers: range) -> None:
        for number in numbers:
            style.write(number)
            until(lambda: waiting(scenario) == 0)

    publish(range(5))
    idle = Calls(publisher_of(style.pool).writes.database, "has_waiting")
    until(lambda: idle.count > 0)  # its statement is one of them
    before = {name: cache.cache_info().currsize for name, cache in CACHES.items()}
    publish(range(5, 55))
    grown = {name: cache.cache_info().currsize - before[name] for name, cache in CACHES.items()}
    assert max(grown.values()) < 5, (
        grown
    )  # a rare statement may have come for the first time, none comes for each block
    assert all(cache.cache_info().maxsize for cache in CACHES.values())


# ---- tables that are missing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["lease", "outbox"])
@pytest.mark.parametrize("on_sqlalchemy", [False, True], ids=["psycopg", "sqlalchemy"])
def test_a_pool_without_a_table_begins_no_block(scenario: PsycopgScenario, table: str, on_sqlalchemy: bool) -> None:
    write_elsewhere(scenario, 1)
    execute(scenario, f"DROP TABLE kafka_transaction_{table}")
    settings = settings_for(scenario, create_table=False)
    source: Any = scenario.database.engine if on_sqlalchemy else conninfo_of(scenario.database.url)
    pool: Any = (DualWriter if on_sqlalchemy else PsycopgDualWriter)(source, **settings)
    with pool:
        begun = False
        with pytest.raises(StateRowError, match=f"kafka_transaction_{table}"), pool.transaction() as tx:
            begun = True
            put(tx, scenario, 2)
        assert not begun
    assert event_bodies(scenario.database) == ["1"]


# ---- how much is asked ----------------------------------------------------------------------------------------------


def most_in(seconds: float) -> int:
    """Return how often the backlog may be queried in that time: about once a second."""
    return int(seconds) + 2


@contextmanager
def few_queries(pool: PsycopgDualWriter) -> Iterator[None]:
    """Assert that the large backlog is queried about once a second, with no attempt to publish."""
    queries = Calls(outbox_writes(pool).database, "backlog")
    attempts = Calls(publisher_of(pool), "_publish_by")
    began_s = time.monotonic()
    yield
    assert queries.count <= most_in(time.monotonic() - began_s)
    assert attempts.count == 0


def test_blocks_of_a_process_that_does_not_publish(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario, Outbox(publishes=False), lease_ms=QUIET_LEASE_MS) as pool:
        write(pool, scenario, 0)
        with few_queries(pool):
            for number in range(1, 50):
                write(pool, scenario, number)


def test_blocks_while_kafka_is_away(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario, lease_ms=QUIET_LEASE_MS) as pool:
        write(pool, scenario, 0)
        assert_published(scenario, 0)
        with kafka_away(scenario.emulator):
            write(pool, scenario, 1)
            until(lambda: pool.pool.availability.is_away)
            until(lambda: publisher_of(pool).last_error is not None)
            with few_queries(pool):
                for number in range(2, 50):
                    write(pool, scenario, number)
        assert_published(scenario, *range(50))


def test_a_refused_publisher_leaves_the_outbox_to_another(scenario: PsycopgScenario) -> None:
    refusal = replace(REFUSAL, client_id="refused")
    with outbox_pool(scenario, client_id="refused") as refused, fault(scenario.emulator, refusal):
        write(refused, scenario, 1)
        until(lambda: bool(refused.status.refused))
        with outbox_pool(scenario) as other:
            write(other, scenario, 2)
            assert_published(scenario, 1, 2)
            assert (refused.status.publishes_outbox, other.status.publishes_outbox) == (False, True)
            write(refused, scenario, 3)
            assert_published(scenario, 1, 2, 3)


def test_a_process_that_gave_up_publishing_tries_again_if_there_is_no_other(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario) as pool:
        with fault(scenario.emulator, REFUSAL):
            write(pool, scenario, 1)
            until(lambda: bool(pool.status.refused) and not pool.status.publishes_outbox)
        publisher_of(pool)._refused_until_s = 0.0  # a minute later
        assert_published(scenario, 1)
        assert pool.status.refused == ()


# ---- more than a batch ----------------------------------------------------------------------------------------------

BATCHES: Final = 4


def multiply(scenario: PsycopgScenario) -> None:
    """Leave several batches of blocks in the outbox, all like one that is published already."""
    execute(
        scenario,
        "INSERT INTO kafka_transaction_outbox (transactional_id, stored_at_ms, records)"
        " SELECT transactional_id, stored_at_ms, records FROM kafka_transaction_outbox, generate_series(1, :many)"
        " WHERE seq > 0",
        many=BATCHES * 1_000 - 1,
    )


@contextmanager
def drained_by(scenario: PsycopgScenario, between: Callable[[PsycopgDualWriter], None]) -> Iterator[PsycopgDualWriter]:
    """Let a process begin to publish several batches; `between` happens in its background after the first one."""
    pools: list[PsycopgDualWriter] = []
    at = AtPointOf(PausePoint.AFTER_KAFKA_COMMIT, lambda: between(pools[0]), of_publisher=True)
    write_elsewhere(scenario, 1)
    multiply(scenario)
    with outbox_pool(scenario, pause=at) as pool:
        pools.append(pool)
        with pool.transaction() as tx:  # which starts the background, and adds nothing
            tx.connection.execute("SELECT 1")
        yield pool


@pytest.mark.usefixtures("asks_twice")
def test_unresolved_commits_are_looked_at_between_batches(scenario: PsycopgScenario) -> None:
    begun: list[Any] = []
    left: list[int] = []

    def lose_one(pool: PsycopgDualWriter) -> None:
        with unresolvable(pool), ThreadPoolExecutor(1) as threads, pytest.raises(OutcomeUnknown):
            threads.submit(lose_commit, pool, scenario, 2, begun=begun.append).result()
        resolve = outbox_writes(pool).resolve

        async def resolve_and_count(write: Any) -> bool:
            left.append(waiting(scenario))
            return await resolve(write)

        vars(outbox_writes(pool))["resolve"] = resolve_and_count

    with drained_by(scenario, lose_one):
        until(lambda: bool(begun) and begun[0].outcome is Outcome.STORED)
        assert left[0] > 1_000
        until(lambda: waiting(scenario) == 0)


def test_a_lost_lease_is_noticed_between_batches(scenario: PsycopgScenario) -> None:
    def lose_lease(pool: PsycopgDualWriter) -> None:
        leases = LeaseTable(scenario)
        leases._prefix = f"{pool_prefix(scenario)}-outbox"
        leases.change(owner="another", expires_at_ms=int(time.time() * 1000) + QUIET_LEASE_MS)
        until(lambda: publisher_of(pool)._lease_lost)

    with drained_by(scenario, lose_lease) as pool:
        until(lambda: waiting(scenario) <= (BATCHES - 1) * 1_000 and not pool.status.publishes_outbox)
        assert waiting(scenario) == (BATCHES - 1) * 1_000


def test_closing_is_noticed_between_batches(scenario: PsycopgScenario) -> None:
    by: list[str] = []
    left: list[int] = []

    def close(pool: PsycopgDualWriter) -> None:
        genuine = publisher_of(pool)._publish_by

        async def publish_by(coordinator: Any, *, goes_on: bool) -> bool:
            by.append(threading.current_thread().name)
            left.append(waiting(scenario))
            return await genuine(coordinator, goes_on=goes_on)

        vars(publisher_of(pool))["_publish_by"] = publish_by
        threading.Thread(target=pool.close, name="closing", daemon=True).start()
        until(lambda: publisher_of(pool)._stopped)

    with drained_by(scenario, close):
        until(lambda: waiting(scenario) == 0)
    assert set(by) == {"closing"}
    assert left[0] == (BATCHES - 1) * 1_000


def test_blocks_are_not_refused_because_of_an_earlier_backlog(scenario: PsycopgScenario) -> None:
    """The process knows of a backlog from when another one published, and then has a block to publish all the time."""
    seen: list[int] = []
    pools: list[PsycopgDualWriter] = []

    def note(point: PausePoint) -> None:
        if point is PausePoint.AFTER_KAFKA_COMMIT and is_publisher():
            seen.append(pools[0].status.outbox_blocks)
            if len(seen) < 5:
                with ThreadPoolExecutor(1) as threads:
                    threads.submit(write, pools[0], scenario, len(seen) + 1).result()

    with outbox_pool(scenario, pause=note) as pool:
        pools.append(pool)
        outbox_writes(pool).backlog = Backlog(7, 7, int(time.time() * 1000))
        write(pool, scenario, 1)
        until(lambda: len(seen) >= 5)
    assert seen[1:5] == [0, 0, 0, 0]


# ---- its waits ------------------------------------------------------------------------------------------------------

BATCH_SIZES: Final = sa.text(
    "SELECT cardinality(published) FROM kafka_transaction_outbox WHERE seq < 0 ORDER BY seq DESC"
)


def batch_sizes(scenario: PsycopgScenario) -> list[int]:
    """Return how many blocks each of the batches had that were published."""
    with scenario.database.aside.connect() as connection:
        return [int(size) for size in connection.scalars(BATCH_SIZES)]


@of_both_kinds
def test_blocks_are_published_without_waiting_for_the_next_look(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style(Outbox(poll_ms=600_000))
    for number in range(3):
        style.write(number)
        assert_published(scenario, *range(number + 1))


@of_both_kinds
def test_blocks_that_arrive_while_the_publisher_lingers_are_one_batch(
    scenario: PsycopgScenario, open_style: Open
) -> None:
    style = open_style(Outbox(linger_ms=600_000))
    style.write(1)
    assert_published(scenario, 1)
    for number in (2, 3, 4):
        style.write(number)
    assert waiting(scenario) == 3
    style.closing().result(60)
    assert_published(scenario, 1, 2, 3, 4)
    assert batch_sizes(scenario) == [1, 3]


def test_recover_does_not_linger(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario, Outbox(linger_ms=600_000)) as pool:
        write(pool, scenario, 1)
        until(lambda: waiting(scenario) == 0)
        write(pool, scenario, 2)
        write(pool, scenario, 3)
        pool.recover()
        assert waiting(scenario) == 0
        assert batch_sizes(scenario) == [1, 2]
