"""Blocks of a pool with an outbox whose COMMIT gets no response: what the crash tests do not say."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.delivery import Direct, Outbox
from dualwrite.errors import OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.dual_write import DualWriteProgress
from dualwrite.recipes.pool.outbox import OutboxWrites
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction, PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sql.outbox_steps import PUBLISHED_KEPT_MS
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase
from tests.crash.psycopg_scenario import INSERT, PsycopgScenario, conninfo_of
from tests.crash.scenario import InjectedError
from tests.recipes.outboxes import (
    assert_published,
    forgetful,
    in_tasks,
    outbox_pool,
    scenario,
    waiting,
)
from tests.recipes.pools import put, write
from tests.support.conditions import until
from tests.support.databases import event_bodies, waits_for_a_lock
from tests.support.narrowing import current

__all__ = ["forgetful", "scenario"]  # fixtures

QUIET: Final = Outbox(publishes=False)

# ---- tools ----------------------------------------------------------------------------------------------------------


def execute(scenario: PsycopgScenario, sql: str, **values: Any) -> Any:
    """Execute a statement as an operator, past every fault, and return its first value, if it has rows."""
    with scenario.database.aside.begin() as connection:
        result = connection.execute(sa.text(sql), values)
        return result.scalar() if result.returns_rows else None


@contextmanager
def faulty(scenario: PsycopgScenario) -> Iterator[psycopg.Connection[Any]]:
    """Open a connection for one block, which alone meets the faults of the database."""
    with psycopg.connect(conninfo_of(scenario.database.engine.url)) as connection:
        yield connection


def lose_commit(
    pool: PsycopgDualWriter,
    scenario: PsycopgScenario,
    number: int,
    *,
    applied: bool = True,
    begun: Callable[[PsycopgDualTransaction], object] = lambda tx: None,
) -> None:
    """Write a block whose COMMIT gets no response; `begun` gets it before it ends."""
    with faulty(scenario) as connection, pool.transaction(connection) as tx:
        begun(tx)
        put(tx, scenario, number)
        scenario.database.lose_commit(applied=applied)


def lost(pool: PsycopgDualWriter, scenario: PsycopgScenario, number: int, *, applied: bool = True) -> Outcome | None:
    """Write a block whose COMMIT gets no response. Return its outcome, as it is known at its end."""
    begun: list[PsycopgDualTransaction] = []
    try:
        lose_commit(pool, scenario, number, applied=applied, begun=begun.append)
    except psycopg.Error:
        assert begun[0].outcome is Outcome.ROLLED_BACK
    return begun[0].outcome


def send_alone(pool: PsycopgDualWriter, scenario: PsycopgScenario, number: int) -> None:
    """Write a block that changes no table of the application."""
    with pool.transaction() as tx:
        tx.send(scenario.topic, key="k", value=str(number))


def outbox_writes(pool: Any) -> OutboxWrites:
    outbox = pool.pool.outbox
    assert outbox is not None
    writes: OutboxWrites = outbox.writes
    return writes


def before_first_question(pool: Any, act: Callable[[], Awaitable[None] | None]) -> None:
    """Call a function after a COMMIT without a response, and before any query for its outcome."""
    writes: Any = outbox_writes(pool)
    ask = writes.resolve
    acts = [act]
    is_done = threading.Event()

    async def resolve(write: DualWriteProgress) -> bool:
        try:
            first = acts.pop()
        except IndexError:
            if not is_done.is_set():  # the background and the block may ask at the same time
                raise psycopg.OperationalError("asked too early") from None
        else:
            try:
                done = first()
                if done is not None:
                    await done
            finally:
                is_done.set()
        found: bool = await ask(write)
        return found

    writes.resolve = resolve


@contextmanager
def in_thread(function: Callable[[], Any]) -> Iterator[Future[Any]]:
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(function)


# ---- how it has ended -----------------------------------------------------------------------------------------------


def test_a_standby_without_the_found_block_takes_over(scenario: PsycopgScenario) -> None:
    """The state row is the same there, so making it durable proves nothing about the block."""
    with outbox_pool(scenario, QUIET) as pool:
        database: Any = outbox_writes(pool).database
        make_durable = database.make_durable

        async def fail_over(*given: Any, **named: Any) -> None:
            database.make_durable = make_durable
            locked = "SELECT pid FROM pg_locks WHERE relation = 'kafka_transaction_state'::regclass"
            execute(scenario, f"SELECT pg_terminate_backend(pid, 60000) FROM ({locked}) AS locks")
            execute(scenario, "DELETE FROM kafka_transaction_outbox")
            execute(scenario, "DELETE FROM events")
            await make_durable(*given, **named)

        database.make_durable = fail_over
        assert lost(pool, scenario, 1) is Outcome.ROLLED_BACK
    assert event_bodies(scenario.database) == []


# ---- when notes of published blocks are deleted ---------------------------------------------------------------------

_NOTES: Final = "SELECT count(*) FROM kafka_transaction_outbox WHERE seq < 0"
_LET_CLOCK_JUMP: Final = "UPDATE kafka_transaction_outbox SET stored_at_ms = stored_at_ms - :jump_ms WHERE seq < 0"


def publish(scenario: PsycopgScenario, *numbers: int) -> None:
    """Let another pool write blocks, and publish them and all others, one at a time."""
    with outbox_pool(scenario) as publisher:
        for number in numbers:
            write(publisher, scenario, number)
            until(lambda: waiting(scenario) == 0)


def let_clock_jump(scenario: PsycopgScenario, jump_ms: int = 2 * PUBLISHED_KEPT_MS) -> None:
    """Let notes be older by the server's clock than they are, or younger."""
    execute(scenario, _LET_CLOCK_JUMP, jump_ms=jump_ms)


def forget(scenario: PsycopgScenario, *numbers: int) -> None:
    """Publish blocks while the clock is ahead of the notes by more than these are kept, so that all are deleted."""
    let_clock_jump(scenario)
    publish(scenario, *numbers)


def assert_unknown_for_good(
    pool: PsycopgDualWriter, scenario: PsycopgScenario, *, applied: bool, before: Callable[[], None]
) -> None:
    """Lose the COMMIT of block 2, call `before` ahead of the query, and assert that the outcome stays unknown."""
    begun: list[PsycopgDualTransaction] = []
    before_first_question(pool, before)
    with pytest.raises(OutcomeUnknown, match="tables for the changes of the block"):
        lose_commit(pool, scenario, 2, applied=applied, begun=begun.append)
    assert begun[0].outcome is None
    assert not outbox_writes(pool).has_unresolved  # no query can tell


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("jump_ms", [2 * PUBLISHED_KEPT_MS, -2 * PUBLISHED_KEPT_MS], ids=["ahead", "back"])
@pytest.mark.parametrize("applied", [True, False])
def test_the_clock_jumps_for_a_while(scenario: PsycopgScenario, applied: bool, jump_ms: int) -> None:
    """The block's note is deleted then, although the block is young when the clock is right again."""

    def jump() -> None:
        publish(scenario, 3)
        let_clock_jump(scenario, jump_ms)
        publish(scenario, 4, 5)

    with outbox_pool(scenario, QUIET) as pool:
        write(pool, scenario, 1)
        assert_unknown_for_good(pool, scenario, applied=applied, before=jump)
    assert_published(scenario, 1, *([2] if applied else []), 3, 4, 5)


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("age_ms", [0, 10 * PUBLISHED_KEPT_MS, -10 * PUBLISHED_KEPT_MS])
def test_notes_deleted_before_the_block_do_not_hide_its_outcome(
    scenario: PsycopgScenario, applied: bool, age_ms: int
) -> None:
    """An absent note then proves that the block was rolled back, however old the block seems to be."""

    def jump() -> None:
        execute(scenario, "UPDATE kafka_transaction_outbox SET stored_at_ms = stored_at_ms - :age", age=age_ms)
        progress = begun[0].progress
        assert progress.added is not None
        progress.added = progress.added._replace(stored_at_ms=progress.added.stored_at_ms - age_ms)
        raise psycopg.OperationalError("asked again")

    begun: list[PsycopgDualTransaction] = []
    with outbox_pool(scenario, QUIET) as pool:
        publish(scenario, 1)
        forget(scenario, 3, 4)
        before_first_question(pool, jump)
        with suppress(psycopg.OperationalError):
            lose_commit(pool, scenario, 2, applied=applied, begun=begun.append)
        assert begun[0].outcome is (Outcome.STORED if applied else Outcome.ROLLED_BACK)


@pytest.mark.usefixtures("forgetful")
def test_a_block_is_published_behind_a_later_block(scenario: PsycopgScenario) -> None:
    """The block is noted, although its number is lower than those of blocks published and forgotten before."""
    with outbox_pool(scenario, QUIET) as pool:
        write(pool, scenario, 1)
        commit = SlowCommit(scenario)
        begun: list[PsycopgDualTransaction] = []

        def write_two() -> None:
            with faulty(scenario) as connection, pool.transaction(connection) as tx:
                begun.append(tx)
                put(tx, scenario, 2)

        with in_thread(write_two) as ended:
            until(commit.is_waited_for)
            with outbox_pool(scenario) as publisher:
                for number in (3, 4, 5):
                    send_alone(publisher, scenario, number)
                    until(lambda: waiting(scenario) == 0)
                    let_clock_jump(scenario)
                before_first_question(pool, lambda: until(lambda: waiting(scenario) == 0))
                scenario.database.cut()
                commit.end(commits=True)
                ended.result(60)
        assert begun[0].outcome is Outcome.STORED


@pytest.mark.usefixtures("forgetful")
def test_notes_of_blocks_published_long_ago_are_forgotten(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario) as pool:
        for number in range(4):
            write(pool, scenario, number)
            until(lambda: waiting(scenario) == 0)
        assert execute(scenario, _NOTES) > 1
        let_clock_jump(scenario)
        write(pool, scenario, 4)
        until(lambda: waiting(scenario) == 0)
        assert execute(scenario, _NOTES) == 1
        assert_published(scenario, *range(5))


def test_a_batch_at_times_forgets(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario) as pool:
        numbers = iter(range(1_000))
        write(pool, scenario, next(numbers))
        until(lambda: waiting(scenario) == 0)
        first = execute(scenario, "SELECT max(seq) FROM kafka_transaction_outbox WHERE seq < 0")
        let_clock_jump(scenario)

        def is_forgotten() -> bool:
            write(pool, scenario, next(numbers))
            until(lambda: waiting(scenario) == 0)
            return not execute(scenario, "SELECT count(*) FROM kafka_transaction_outbox WHERE seq = :seq", seq=first)

        until(is_forgotten)


# ---- its waits ------------------------------------------------------------------------------------------------------


class SlowCommit:
    """Lets a COMMIT that inserted into `events` wait in the server, and end on command."""

    def __init__(self, scenario: PsycopgScenario) -> None:
        self._scenario = scenario
        self._key = int.from_bytes(os.urandom(4)) // 2
        self._holder = psycopg.connect(conninfo_of(scenario.database.url), autocommit=True)
        self._holder.execute("SELECT pg_advisory_lock(%s)", (self._key,))
        self._holder.execute("CREATE TABLE fails ()")
        self._holder.execute(
            "CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
            f" PERFORM pg_advisory_xact_lock({self._key});"
            " IF to_regclass('fails_now') IS NOT NULL THEN RAISE EXCEPTION 'the test lets it fail'; END IF;"
            " RETURN NULL; END$$"
        )
        self._holder.execute(
            "CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION wait_for_test()"
        )

    def is_waited_for(self) -> bool:
        found = execute(
            self._scenario,
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = :key AND NOT granted",
            key=self._key,
        )
        return bool(found)

    def end(self, *, commits: bool) -> None:
        if not commits:
            self._holder.execute("ALTER TABLE fails RENAME TO fails_now")
        self._holder.close()


@contextmanager
def locked_row(scenario: PsycopgScenario) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(conninfo_of(scenario.database.url)) as connection:
        connection.execute("SELECT FROM kafka_transaction_state FOR UPDATE")
        yield connection


@pytest.mark.parametrize("applied", [True, False])
def test_the_row_is_locked_for_longer_than_it_may_wait(scenario: PsycopgScenario, applied: bool) -> None:
    with outbox_pool(scenario, QUIET, resolve_timeout_ms=200) as pool:
        write(pool, scenario, 1)
        begun: list[PsycopgDualTransaction] = []
        with locked_row(scenario):
            with pytest.raises(OutcomeUnknown, match="the pool keeps querying in the background"):
                lose_commit(pool, scenario, 2, applied=applied, begun=begun.append)
            assert current(begun[0].outcome) is None
            assert current(outbox_writes(pool).has_unresolved)
        until(lambda: begun[0].outcome is not None)
        assert begun[0].outcome is (Outcome.STORED if applied else Outcome.ROLLED_BACK)
        assert not outbox_writes(pool).has_unresolved


def test_the_row_is_locked_for_a_while(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario, QUIET) as pool:
        write(pool, scenario, 1)
        with locked_row(scenario) as locked, in_thread(lambda: lost(pool, scenario, 2)) as ended:
            until(lambda: waits_for_a_lock(scenario.database, "kafka_transaction_state"))
            assert not ended.done()
            locked.rollback()
            assert ended.result(60) is Outcome.STORED


# ---- interruptions --------------------------------------------------------------------------------------------------


async def happens(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, condition)


def started_block(scenario: PsycopgScenario, pool: AsyncPsycopgDualWriter, begun: list[Any]) -> asyncio.Task[None]:
    """Start a block on a connection of its own, which alone meets the faults of the database."""

    async def block() -> None:
        connection = await psycopg.AsyncConnection.connect(conninfo_of(scenario.database.engine.url))
        async with connection, pool.transaction(connection) as tx:
            begun.append(tx)
            await tx.connection.execute(INSERT, (1, "1"))
            tx.send(scenario.topic, key="k", value="1")

    return asyncio.create_task(block())


@pytest.mark.parametrize("applied", [True, False])
def test_a_task_is_cancelled_while_it_queries_its_outcome(scenario: PsycopgScenario, applied: bool) -> None:
    async def use(pool: AsyncPsycopgDualWriter) -> None:
        begun: list[Any] = []

        async def cancel() -> None:
            block.cancel()
            await asyncio.sleep(0)

        before_first_question(pool, cancel)
        async with pool.transaction() as tx:  # the tables are there then
            await tx.connection.execute("SELECT 1")
        scenario.database.lose_commit(applied=applied)
        block = started_block(scenario, pool, begun)
        with pytest.raises(asyncio.CancelledError):
            await block
        await happens(lambda: begun[0].outcome is not None)
        assert begun[0].outcome is (Outcome.STORED if applied else Outcome.ROLLED_BACK)
        assert not outbox_writes(pool).has_unresolved

    in_tasks(scenario, use, delivery=QUIET, resolve_timeout_ms=60_000)
    assert event_bodies(scenario.database) == (["1"] if applied else [])


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_thread_is_interrupted_while_it_queries_its_outcome(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario, QUIET) as pool:
        before_first_question(pool, _interrupt)
        begun: list[PsycopgDualTransaction] = []
        with pytest.raises(KeyboardInterrupt):
            lose_commit(pool, scenario, 1, begun=begun.append)
        until(lambda: begun[0].outcome is not None)
        assert begun[0].outcome is Outcome.STORED


class TimeLimitError(Exception):
    """Raised by the handler of a signal."""


@pytest.fixture(params=[KeyboardInterrupt, TimeLimitError])
def interruption(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """Let SIGINT, which is ignored in a shell's background job, raise an exception."""
    kind: type[BaseException] = request.param

    def interrupt(*_: object) -> None:
        raise kind

    before = signal.signal(signal.SIGINT, interrupt)
    yield kind
    signal.signal(signal.SIGINT, before)


def test_a_thread_is_interrupted_during_its_commit(
    scenario: PsycopgScenario, interruption: type[BaseException]
) -> None:
    with outbox_pool(scenario, QUIET) as pool:
        commit = SlowCommit(scenario)
        main = threading.get_ident()
        begun: list[PsycopgDualTransaction] = []

        def interrupt() -> None:
            until(commit.is_waited_for)
            signal.pthread_kill(main, signal.SIGINT)

        with in_thread(interrupt), pytest.raises(interruption):
            with pool.transaction() as tx:
                begun.append(tx)
                put(tx, scenario, 1)
        assert begun[0].outcome is None
        commit.end(commits=True)
        until(lambda: begun[0].outcome is not None)
        assert begun[0].outcome is Outcome.STORED


def test_a_signal_while_a_pool_recovers_replaces_an_earlier_error(
    scenario: PsycopgScenario, interruption: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`recover` goes on after an error, to raise it at the end."""

    async def fails(**_: object) -> tuple[list[object], list[Exception]]:
        return [], [InjectedError()]

    async def strikes() -> None:
        signal.raise_signal(signal.SIGINT)

    with outbox_pool(scenario, delivery=Direct()) as pool:
        with monkeypatch.context() as patched:
            patched.setattr(pool.pool.maintenance, "_resolve_set_aside", fails)
            patched.setattr(pool.pool._leases, "adopt", strikes)
            with pytest.raises(interruption):
                pool.recover()


def test_a_signal_while_an_outbox_is_closed_reaches_the_caller(
    scenario: PsycopgScenario, interruption: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def strikes() -> None:
        signal.raise_signal(signal.SIGINT)

    with outbox_pool(scenario) as pool:
        outbox = pool.pool.outbox
        assert outbox is not None
        with monkeypatch.context() as patched:
            patched.setattr(outbox, "_publish_the_rest", strikes)
            with pytest.raises(interruption):
                pool.close()


# ---- the isolation of what publishes and resolves ------------------------------------------------------------------


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_block_committed_while_the_row_was_waited_for_is_seen(scenario: PsycopgScenario, level: Any) -> None:
    """Also by `dualwrite recover`, which uses the engine of its caller."""
    write_alone = Outbox(publishes=False)
    engine = sa.create_engine(scenario.database.url, isolation_level=level)
    with outbox_pool(scenario, write_alone) as pool:
        write(pool, scenario, 1)
        database = SqlAlchemyDatabase(engine, create_table=False)
        with locked_row(scenario) as locked, ThreadPoolExecutor(1) as threads:

            async def seen() -> int:
                transaction = await database.begin()
                await transaction.lock(scenario.transactional_id, timeout_ms=60_000)
                table = transaction.stored_blocks(scenario.transactional_id)
                found = await table.waiting(scenario.transactional_id, max_bytes=1_000_000)
                await transaction.rollback()
                await transaction.close()
                return len(found[1])

            found = threads.submit(lambda: blocking.run(seen()))
            until(lambda: waits_for_a_lock(scenario.database, "kafka_transaction_state"))
            write(pool, scenario, 2)
            locked.rollback()
            assert found.result(60) == 2
    engine.dispose()
