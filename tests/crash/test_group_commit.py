"""Group commit in tasks: blocks of many tasks by one commit; what fails in one of them, and what fails in all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

import psycopg
import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import (
    ConfigError,
    IllegalStateError,
    InvalidRecordError,
    PoolTimeoutError,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.pool.group_settings import GroupCommit
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualTransaction as Tx
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriterPool
from dualwrite.testing.postgres import PostgresServer
from tests.crash.psycopg_scenario import INSERT, AwaitedPsycopgScenario, awaited_psycopg_scenario, conninfo_of
from tests.crash.scenario import POINTS_AFTER_THE_DECISION, AtPoint
from tests.recipes.pools import QUIET_LEASE_MS, prefix_of, written
from tests.support.databases import PostgresDatabase, unique
from tests.support.topics import read_topic

Unit = Callable[[Tx], Awaitable[None]]
Use = Callable[[AsyncPsycopgDualWriterPool], Awaitable[None]]


PATIENT: Final = MappingProxyType({"slow_block_ms": 600_000, "max_block_ms": 600_000})
"""So that no time passes that changes who is in which group."""


class OrdinaryError(Exception):
    pass


@pytest.fixture
def scenario(postgres_server: PostgresServer, emulator: Emulator) -> Iterator[AwaitedPsycopgScenario]:
    database = PostgresDatabase(postgres_server)
    with awaited_psycopg_scenario(database, emulator) as made:
        made.transactional_id = f"{unique('group')}-0"
        yield made
    database.close()


def with_groups(
    scenario: AwaitedPsycopgScenario,
    use: Use,
    *,
    max_blocks: int = 32,
    max_groups: int = 1,
    limits: Mapping[str, int] = PATIENT,
    **settings: Any,
) -> None:
    async def run() -> None:
        complete: dict[str, Any] = {"lease_ms": QUIET_LEASE_MS, "lock_timeout_ms": 60_000, "max_block_ms": 60_000}
        async with AsyncPsycopgDualWriterPool(
            settings.pop("source", conninfo_of(scenario.database.engine.url)),
            prefix=prefix_of(scenario),
            bootstrap_servers=scenario.emulator.bootstrap_servers,
            group_commit=GroupCommit(max_blocks=max_blocks, max_groups=max_groups, **limits),
            **(complete | settings),
        ) as pool:
            await use(pool)

    scenario.run(run())


class Writer:
    """Writes numbers through a group commit, each in a unit of its own."""

    def __init__(self, scenario: AwaitedPsycopgScenario, pool: AsyncPsycopgDualWriterPool) -> None:
        self._scenario = scenario
        self._pool = pool

    async def put(self, tx: Tx, number: int) -> None:
        await tx.connection.execute(INSERT, (number, str(number)))
        tx.send(self._scenario.topic, key="k", value=str(number))

    async def write(self, number: int, then: Unit | None = None) -> Tx:
        async with self._pool.transaction() as tx:
            await self.put(tx, number)
            if then is not None:
                await then(tx)
        return tx

    async def together(self, numbers: list[int], then: dict[int, Unit]) -> list[Tx | BaseException]:
        """In one group, in this order: the first does not end before all have asked."""
        first = numbers[0]
        asked = asyncio.Event()

        async def wait_for_all(tx: Tx) -> None:
            await asked.wait()
            if first in then:
                await then[first](tx)

        tasks = [
            asyncio.create_task(self.write(number, wait_for_all if number == first else then.get(number)))
            for number in numbers
        ]
        await until(lambda: waiting(self._pool) == len(numbers) - 1)
        asked.set()
        return await asyncio.gather(*tasks, return_exceptions=True)


def waiting(pool: AsyncPsycopgDualWriterPool) -> int:
    """Return how many blocks wait for their turn."""
    assert pool.groups is not None
    return pool.groups.waiting


def has_ended(tx: DualWrite) -> bool:
    """Return whether the block of a group has ended."""
    try:
        tx.assert_in_block()
    except IllegalStateError:
        return True
    return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        for _ in iter(condition, True):
            await asyncio.sleep(0)


def in_order(scenario: AwaitedPsycopgScenario) -> list[str]:
    return [value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]


def test_units_that_come_together_are_committed_together(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        units = await Writer(scenario, pool).together(list(range(16)), {})
        assert all(isinstance(unit, Tx) for unit in units), units
        ended = [unit for unit in units if isinstance(unit, Tx)]
        assert {unit.outcome for unit in ended} == {Outcome.COMMITTED}
        assert len({(unit.group, unit.transactional_id, unit.prepared_state) for unit in ended}) == 1

    with_groups(scenario, use)
    assert written(scenario) == {str(number) for number in range(16)}
    assert in_order(scenario) == [str(number) for number in range(16)]
    scenario.assert_nothing_open()


def test_units_that_come_while_groups_commit_are_the_next_group(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)

        async def several(worker: int) -> list[int]:
            written = [await writer.write(worker * 100 + number) for number in range(10)]
            return [tx.group or 0 for tx in written]

        of_workers = await asyncio.gather(*(several(worker) for worker in range(8)))
        assert all(numbers == sorted(set(numbers)) for numbers in of_workers), "each waits for its group"
        assert len({group for numbers in of_workers for group in numbers}) < 80, "none was shared"

    with_groups(scenario, use, max_groups=2)
    assert len(written(scenario)) == 80
    scenario.assert_nothing_open()


async def raise_an_error(tx: Tx) -> None:
    raise OrdinaryError


async def fail_a_statement(tx: Tx) -> None:
    await tx.connection.execute("SELECT * FROM no_such_table")


async def swallow_a_statements_error(tx: Tx) -> None:
    with suppress(psycopg.Error):
        await fail_a_statement(tx)


async def swallow_a_refused_record(tx: Tx) -> None:
    with pytest.raises(InvalidRecordError):
        tx.send("not a topic", value="x")


async def swallow_a_refused_commit(tx: Tx) -> None:
    with pytest.raises(TransactionEndedInsideError):
        await tx.connection.commit()


async def leave_a_savepoint_set(tx: Tx) -> None:
    await tx.connection.execute("SAVEPOINT mine")
    raise OrdinaryError


@pytest.mark.parametrize("place", [0, 2, 4], ids=["first", "between", "last"])
@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (raise_an_error, OrdinaryError),
        (fail_a_statement, psycopg.errors.UndefinedTable),
        (swallow_a_statements_error, TransactionDoomedError),
        (swallow_a_refused_record, TransactionDoomedError),
        (swallow_a_refused_commit, TransactionDoomedError),
        (leave_a_savepoint_set, OrdinaryError),
    ],
)
def test_a_unit_that_fails_fails_by_itself(
    scenario: AwaitedPsycopgScenario, failure: Unit, error: type[Exception], place: int
) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        units = await Writer(scenario, pool).together([0, 1, 2, 3, 4], {place: failure})
        assert isinstance(units.pop(place), error)
        assert all(isinstance(unit, Tx) and unit.outcome is Outcome.COMMITTED for unit in units), units

    with_groups(scenario, use)
    assert written(scenario) == {str(number) for number in range(5) if number != place}
    scenario.assert_nothing_open()


def test_units_that_fail_one_after_the_other(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        failures: dict[int, Unit] = dict.fromkeys((0, 1, 3, 4, 6), raise_an_error)
        units = await Writer(scenario, pool).together(list(range(8)), failures)
        assert [isinstance(unit, OrdinaryError) for unit in units] == [number in failures for number in range(8)]

    with_groups(scenario, use)
    assert written(scenario) == {"2", "5", "7"}
    scenario.assert_nothing_open()


def test_a_savepoint_inside_a_unit(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)

        async def in_part(tx: Tx) -> None:
            with suppress(OrdinaryError):
                async with tx.savepoint() as part:
                    await writer.put(part, 100)
                    raise OrdinaryError
            async with tx.savepoint():
                await writer.put(tx, 101)

        await writer.together([0, 1, 2], {1: in_part})

    with_groups(scenario, use)
    assert written(scenario) == {"0", "1", "101", "2"}


def test_a_statement_that_is_left_under_way_takes_the_group_with_it(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)
        copying: list[Any] = []

        async def leave_a_copy(tx: Tx) -> None:
            copying.append(tx.connection.cursor().copy("COPY events FROM STDIN"))
            await copying[0].__aenter__()

        units = await writer.together([0, 1, 2], {1: leave_a_copy})
        assert [type(unit) for unit in units[:2]] == [IllegalStateError, IllegalStateError]
        assert "another block of this group ended inside" in str(units[0])
        assert isinstance(units[2], Tx), "it was not in that group yet"

    with_groups(scenario, use)
    assert written(scenario) == {"2"}
    scenario.assert_nothing_open()


@pytest.mark.parametrize("point", list(PausePoint))
def test_an_error_at_a_point_is_that_of_all_units(scenario: AwaitedPsycopgScenario, point: PausePoint) -> None:
    def fail() -> None:
        raise OrdinaryError

    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)
        units = await writer.together([0, 1, 2], {})
        assert [type(unit) for unit in units] == [OrdinaryError] * 3
        await writer.write(3)
        await until(lambda: not pool.status.set_aside)  # the background commits Kafka's side of what is decided

    with_groups(scenario, use, pause=AtPoint(point, fail), max_writers=2)
    is_decided = point in POINTS_AFTER_THE_DECISION
    assert written(scenario) == {"3", *({"0", "1", "2"} if is_decided else ())}
    scenario.assert_nothing_open()


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_commit_is_resolved_for_all_units(scenario: AwaitedPsycopgScenario, applied: bool) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        await pool.recover()  # so that the background, which sweeps as it begins, commits nothing after this
        writer = Writer(scenario, pool)
        await writer.write(9)  # whose id is leased by a commit, too
        scenario.database.lose_commit(applied=applied)
        units = await writer.together([0, 1, 2], {})
        scenario.database.disarm()
        if applied:
            assert [getattr(unit, "outcome", unit) for unit in units] == [Outcome.COMMITTED] * 3
        else:
            assert all(isinstance(unit, psycopg.Error) for unit in units), units

    with_groups(scenario, use)
    assert written(scenario) == {"9", *({"0", "1", "2"} if applied else ())}
    scenario.assert_nothing_open()


def test_a_cancellation_inside_and_before_a_unit(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)
        inside = asyncio.Event()

        async def stay(tx: Tx) -> None:
            inside.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(writer.write(0, stay))
        await inside.wait()
        waiting = [asyncio.create_task(writer.write(number)) for number in (1, 2, 3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.sleep(0)
        running.cancel()
        ended = await asyncio.gather(running, *waiting, return_exceptions=True)
        assert [type(each) for each in ended] == [
            asyncio.CancelledError,
            Tx,
            asyncio.CancelledError,
            Tx,
        ]

    with_groups(scenario, use)
    assert written(scenario) == {"1", "3"}
    scenario.assert_nothing_open()


def test_a_cancellation_while_the_group_commits_does_not_stop_it(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)
        seen: list[Tx] = []

        async def remember(tx: Tx) -> None:
            seen.append(tx)

        hold = asyncio.Event()

        async def stay(tx: Tx) -> None:
            await hold.wait()

        first = asyncio.create_task(writer.write(0, remember))
        second = asyncio.create_task(writer.write(1, stay))
        await until(lambda: bool(seen) and has_ended(seen[0]))
        first.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await first
        assert "its group" in cancelled.value.__notes__[0]
        assert seen[0].outcome is None
        hold.set()
        await second
        assert seen[0].outcome is Outcome.COMMITTED

    with_groups(scenario, use)
    assert written(scenario) == {"0", "1"}


def test_who_gets_no_turn_in_time_hears_why(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)

        async def let_another_wait(tx: Tx) -> None:
            with pytest.raises(PoolTimeoutError, match="took this block within 50 ms: 1 groups are open"):
                await asyncio.create_task(writer.write(1))

        while True:  # the first group connects and takes its id over: it may take longer, too
            with suppress(PoolTimeoutError):
                await writer.write(0, let_another_wait)
                return

    with_groups(scenario, use, acquire_timeout_ms=50)
    assert written(scenario) == {"0"}


def test_a_unit_inside_a_unit_is_refused(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)

        async def nest(tx: Tx) -> None:
            with pytest.raises(IllegalStateError, match="inside a block of a group already"):
                await writer.write(1)

        await writer.write(0, nest)

    with_groups(scenario, use)
    assert written(scenario) == {"0"}


def test_a_unit_is_over_when_its_block_is(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        tx = await Writer(scenario, pool).write(0)
        for late in (lambda: tx.send(scenario.topic, value="late"), lambda: tx.connection):
            with pytest.raises(IllegalStateError, match="has ended"):
                late()

    with_groups(scenario, use)
    assert written(scenario) == {"0"}


def test_a_snapshot_older_than_a_unit_is_refused(scenario: AwaitedPsycopgScenario) -> None:
    async def connect() -> psycopg.AsyncConnection:
        connection = await psycopg.AsyncConnection.connect(conninfo_of(scenario.database.engine.url))
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        return connection

    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        units = await asyncio.gather(*(Writer(scenario, pool).write(n) for n in range(3)), return_exceptions=True)
        assert all(isinstance(unit, IllegalStateError) and "READ COMMITTED" in str(unit) for unit in units), units

    with_groups(scenario, use, source=connect)
    assert written(scenario) == set()


def test_units_go_on_when_the_database_is_back(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)
        await writer.write(0)
        scenario.database.refuse_new_connections()
        scenario.database.cut()
        units = await asyncio.gather(*(writer.write(number) for number in (1, 2, 3)), return_exceptions=True)
        assert all(isinstance(unit, psycopg.OperationalError) for unit in units), units
        scenario.database.come_back()
        await writer.write(4)

    with_groups(scenario, use)
    assert written(scenario) == {"0", "4"}
    scenario.assert_nothing_open()


def test_a_connection_that_breaks_between_units_leaves_nobody_waiting(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)

        async def cut(tx: Tx) -> None:
            scenario.database.cut()

        units = await writer.together([0, 1, 2], {0: cut})
        assert isinstance(units[0], psycopg.Error)
        assert [getattr(unit, "outcome", unit) for unit in units[1:]] == [Outcome.COMMITTED] * 2

    with_groups(scenario, use)
    assert written(scenario) == {"1", "2"}
    scenario.assert_nothing_open()


@pytest.mark.parametrize(("limit", "sizes"), [({"max_blocks": 3}, [3, 3, 2]), ({"max_buffered_bytes": 1_000}, [2] * 4)])
def test_a_full_group_leaves_the_rest_to_the_next(
    scenario: AwaitedPsycopgScenario, limit: dict[str, Any], sizes: list[int]
) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        def fill(tx: Tx) -> Awaitable[None]:
            tx.send(scenario.topic, key="k", value="x" * 90)
            return asyncio.sleep(0)

        units = await Writer(scenario, pool).together(list(range(8)), dict.fromkeys(range(8), fill))
        numbers = [unit.group for unit in units if isinstance(unit, Tx)]
        assert list(Counter(numbers).values()) == sizes

    with_groups(scenario, use, **limit)
    scenario.assert_nothing_open()


def test_closing_waits_for_those_who_have_asked(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)
        asked = [asyncio.create_task(writer.write(number)) for number in range(5)]
        await asyncio.sleep(0)
        await pool.close()
        assert all(task.done() for task in asked)
        with pytest.raises(IllegalStateError, match="is closed"):
            await writer.write(5)

    with_groups(scenario, use, max_blocks=2)
    assert written(scenario) == {str(number) for number in range(5)}


@pytest.mark.parametrize("limits", [{"max_blocks": 0}, {"max_blocks": 65}, {"max_groups": 0}])
def test_limits_that_are_none(scenario: AwaitedPsycopgScenario, limits: dict[str, Any]) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match=next(iter(limits))):
        with_groups(scenario, use, **limits)


@pytest.mark.parametrize("seed", range(4))
def test_any_mixture_leaves_both_sides_equal(scenario: AwaitedPsycopgScenario, seed: int) -> None:
    """Units that succeed, fail in every way and are cancelled, while connections of both sides break."""
    chance = random.Random(seed)
    failures = [raise_an_error, fail_a_statement, swallow_a_statements_error, swallow_a_refused_record]
    known: dict[int, Outcome | None] = {}

    async def worker(writer: Writer, name: int) -> None:
        for number in range(name * 100, name * 100 + 12):
            seen: list[Tx] = []

            async def then(tx: Tx, seen: list[Tx] = seen) -> None:
                seen.append(tx)
                if chance.random() < 0.3:
                    await chance.choice(failures)(tx)

            task = asyncio.create_task(writer.write(number, then))
            if chance.random() < 0.15:
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)
                task.cancel()
            with suppress(Exception, asyncio.CancelledError):
                await task
                known[number] = Outcome.COMMITTED
            if chance.random() < 0.03:
                scenario.database.cut()
            if chance.random() < 0.03:
                scenario.emulator.disconnect_clients()

    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        await asyncio.gather(*(worker(Writer(scenario, pool), name) for name in range(8)))
        await Writer(scenario, pool).write(9_999)

    with_groups(scenario, use, max_groups=2, max_writers=4)
    both = written(scenario)  # the table, and the same in the topic
    assert {str(number) for number in known} <= both
    assert len(known) > 20
    scenario.assert_nothing_open()
