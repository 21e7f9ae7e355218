"""`AsyncDualWriterPool`: the rules of `DualWriterPool`, awaited; and a cancellation at every point."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.errors import FencedError, IllegalStateError, PoolTimeoutError
from dualwrite.recipes.decisions import Outcome
from dualwrite.recipes.leases import transactional_id_of
from dualwrite.recipes.pause_points import PausePoint
from dualwrite.recipes.pool_async import AsyncDualTransaction, AsyncDualWriterPool
from dualwrite.recipes.pooled_writes import Block
from tests.crash.awaited import AwaitedScenario
from tests.crash.scenario import POINTS_AFTER_THE_DECISION, AtPoint, Predecessor
from tests.recipes.pools import QUIET_LEASE_MS, LeaseTable, prefix_of, written
from tests.support import conditions
from tests.support.databases import events, unique

Use = Callable[[AsyncDualWriterPool], Awaitable[None]]


@pytest.fixture
def awaited_pool(awaited: AwaitedScenario) -> AwaitedScenario:
    awaited.transactional_id = f"{unique('pool')}-0"
    return awaited


def make_pool(awaited: AwaitedScenario, **settings: Any) -> AsyncDualWriterPool:
    return AsyncDualWriterPool(
        awaited.engine,
        prefix=prefix_of(awaited),
        bootstrap_servers=awaited.emulator.bootstrap_servers,
        **{"lease_ms": QUIET_LEASE_MS, "lock_timeout_ms": 10_000, "max_block_ms": 20_000, **settings},
    )


def with_pool(awaited: AwaitedScenario, use: Use, **settings: Any) -> None:
    async def run() -> None:
        async with make_pool(awaited, **settings) as pool:
            await use(pool)

    awaited.run(run())


async def write(pool: AsyncDualWriterPool, awaited: AwaitedScenario, number: int) -> AsyncDualTransaction:
    async with pool.transaction() as tx:
        await put(tx, awaited, number)
    return tx


async def put(tx: AsyncDualTransaction, awaited: AwaitedScenario, number: int) -> None:
    await tx.session.execute(sa.insert(events), {"id": number, "event_key": "k", "body": str(number)})
    tx.send(awaited.topic, value=str(number), key="k")


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(conditions.until, condition)


def locks_whole_database(awaited: AwaitedScenario) -> bool:
    return awaited.database.engine.dialect.name == "sqlite"


def test_tasks_write_at_once_under_ids_of_their_own(awaited_pool: AwaitedScenario) -> None:
    async def use(pool: AsyncDualWriterPool) -> None:
        writes = await asyncio.gather(*(write(pool, awaited_pool, number) for number in range(8)))
        assert {tx.outcome for tx in writes} == {Outcome.COMMITTED}
        assert pool.status.in_use == pool.status.waiting == 0

    with_pool(awaited_pool, use, max_writers=1 if locks_whole_database(awaited_pool) else 4)
    assert set(LeaseTable(awaited_pool).owners().values()) == {None}
    assert written(awaited_pool) == {str(number) for number in range(8)}
    awaited_pool.assert_nothing_open()


def test_what_a_dead_process_left_is_recovered(awaited_pool: AwaitedScenario) -> None:
    awaited_pool.leave_behind(Predecessor.COMMITTED)
    LeaseTable(awaited_pool).add(0, "dead")

    async def use(pool: AsyncDualWriterPool) -> None:
        (resolution,) = await pool.recover()
        assert resolution.outcome is Outcome.COMMITTED
        assert (await write(pool, awaited_pool, 10)).transactional_id == awaited_pool.transactional_id

    with_pool(awaited_pool, use)
    assert written(awaited_pool) == {*awaited_pool.expected, "10"}


def test_a_lost_slot_costs_another_one(awaited_pool: AwaitedScenario) -> None:
    leases = LeaseTable(awaited_pool)

    async def use(first: AsyncDualWriterPool) -> None:
        async with make_pool(awaited_pool) as second:
            await write(first, awaited_pool, 1)
            leases.free()
            await write(second, awaited_pool, 2)
            try:
                tx = await write(first, awaited_pool, 3)
            except FencedError:
                assert locks_whole_database(awaited_pool)
                tx = await write(first, awaited_pool, 3)
            assert tx.transactional_id == transactional_id_of(prefix_of(awaited_pool), 1)
            assert first.status.moved_total == 1

    with_pool(awaited_pool, use)
    assert written(awaited_pool) == {"1", "2", "3"}
    awaited_pool.assert_nothing_open()


# Nothing is awaited after AFTER_KAFKA_COMMIT.
@pytest.mark.parametrize("point", [point for point in PausePoint if point is not PausePoint.AFTER_KAFKA_COMMIT])
def test_a_cancellation_at_a_point(awaited_pool: AwaitedScenario, point: PausePoint) -> None:
    def cancel() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def use(pool: AsyncDualWriterPool) -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(write(pool, awaited_pool, 1))
        assert pool.status.in_use == 0
        await write(pool, awaited_pool, 2)
        await until(lambda: not pool.status.set_aside)

    strike = AtPoint(point, cancel)
    with_pool(awaited_pool, use, pause=strike)
    both = written(awaited_pool)
    assert "2" in both
    if point in POINTS_AFTER_THE_DECISION:
        assert "1" in both
    awaited_pool.assert_nothing_open()


def test_who_waits_may_be_cancelled_or_wait_too_long(awaited_pool: AwaitedScenario) -> None:
    async def use(pool: AsyncDualWriterPool) -> None:
        async with pool.transaction() as tx:
            await put(tx, awaited_pool, 1)
            await pool._writes.take_slot(holder := Block())
            waiting = [asyncio.create_task(write(pool, awaited_pool, number)) for number in (2, 3)]
            await until(lambda: pool.status.waiting == 2)
            waiting[0].cancel()
            for task in waiting:
                with pytest.raises((asyncio.CancelledError, PoolTimeoutError)):
                    await task
            assert holder.slot is not None
            pool._writes._keeper.put_back(holder.slot)
        await write(pool, awaited_pool, 4)

    if locks_whole_database(awaited_pool):
        pytest.skip("a block has its slot from the start")
    with_pool(awaited_pool, use, max_writers=1, acquire_timeout_ms=300)
    assert written(awaited_pool) == {"1", "4"}


def test_a_closed_pool_begins_nothing(awaited_pool: AwaitedScenario) -> None:
    async def use(pool: AsyncDualWriterPool) -> None:
        await write(pool, awaited_pool, 1)
        await pool.close()
        with pytest.raises(IllegalStateError, match="closed"):
            await write(pool, awaited_pool, 2)

    with_pool(awaited_pool, use)
    assert written(awaited_pool) == {"1"}
