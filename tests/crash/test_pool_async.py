"""Pools for asyncio: the rules of those for threads, awaited; and a cancellation at every point."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dualwrite.errors import PoolTimeoutError
from dualwrite.recipes.asyncpg.writer import AsyncpgDualTransaction, AsyncpgDualWriter
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.pool.coordinator import PooledBlock
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualTransaction, AsyncPsycopgDualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter
from tests.crash.asyncpg_scenario import AsyncpgScenario
from tests.crash.awaited import AwaitedScenario
from tests.crash.conftest import AnyAwaited
from tests.crash.matrix import cancel
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import POINTS_AFTER_THE_DECISION, AtPoint
from tests.recipes.pools import QUIET_LEASE_MS, prefix_of, written
from tests.support import conditions
from tests.support.databases import unique

AnyPool = AsyncDualWriter | AsyncPsycopgDualWriter | AsyncpgDualWriter
AnyWrite = AsyncDualTransaction | AsyncPsycopgDualTransaction | AsyncpgDualTransaction


@pytest.fixture
def awaited_pool(awaited: AnyAwaited) -> AnyAwaited:
    """A scenario for each awaited driver, whose id is the first of a pool."""
    awaited.transactional_id = f"{unique('pool')}-0"
    return awaited


def make_pool(awaited: AnyAwaited, source: Any = None, **settings: Any) -> AnyPool:
    complete: dict[str, Any] = {
        "prefix": prefix_of(awaited),
        "bootstrap_servers": awaited.emulator.bootstrap_servers,
        "lease_ms": QUIET_LEASE_MS,
        "lock_timeout_ms": 60_000,
        "max_block_ms": 60_000,
        **settings,
    }
    if isinstance(awaited, AwaitedScenario):
        return AsyncDualWriter(awaited.engine, **complete)
    kind = AsyncpgDualWriter if isinstance(awaited, AsyncpgScenario) else AsyncPsycopgDualWriter
    return kind(source or conninfo_of(awaited.database.engine.url), **complete)


async def write(pool: AnyPool, awaited: AnyAwaited, number: int) -> AnyWrite:
    async with pool.transaction() as tx:
        await put(tx, awaited, number)
    return tx


async def put(tx: AnyWrite, awaited: AnyAwaited, number: int) -> None:
    insert: Callable[[Any, int, str], Awaitable[None]] = awaited.insert  # takes a transaction of its own writers
    await insert(tx, number, str(number))
    tx.send(awaited.topic, value=str(number), key="k")


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(conditions.until, condition)


def locks_whole_database(awaited: AnyAwaited) -> bool:
    return awaited.database.engine.dialect.name == "sqlite"


# Nothing is awaited after AFTER_KAFKA_COMMIT.
@pytest.mark.parametrize("point", [point for point in PausePoint if point is not PausePoint.AFTER_KAFKA_COMMIT])
async def test_a_cancellation_at_a_point(awaited_pool: AnyAwaited, point: PausePoint) -> None:
    strike = AtPoint(point, cancel)
    async with make_pool(awaited_pool, pause=strike) as pool:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(write(pool, awaited_pool, 1))
        assert pool.status.in_use == 0
        await write(pool, awaited_pool, 2)
        await until(lambda: not pool.status.set_aside)
    both = written(awaited_pool)
    assert "2" in both
    if point in POINTS_AFTER_THE_DECISION:
        assert "1" in both
    awaited_pool.assert_nothing_open()


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "timed out"])
async def test_a_waiting_block_may_be_cancelled_or_time_out(awaited_pool: AnyAwaited, is_cancelled: bool) -> None:
    if locks_whole_database(awaited_pool):
        pytest.skip("a block has its slot from the start")
    timeout_ms = 60_000 if is_cancelled else 2_000
    async with make_pool(awaited_pool, max_writers=1, acquire_timeout_ms=timeout_ms) as pool:
        async with pool.transaction() as tx:
            await put(tx, awaited_pool, 1)
            await (holder := PooledBlock(pool.pool)).take_slot()
            waiting = asyncio.create_task(write(pool, awaited_pool, 2))
            if is_cancelled:
                await until(lambda: pool.status.waiting == 1)
                waiting.cancel()
            with pytest.raises(asyncio.CancelledError if is_cancelled else PoolTimeoutError):
                await waiting
            assert holder.slot is not None
            pool.pool.maintenance.put_back(holder.slot)
        await write(pool, awaited_pool, 4)
    assert written(awaited_pool) == {"1", "4"}
