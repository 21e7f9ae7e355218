"""`@writer.transactional` of the writers for asyncio; the counterpart of `test_decorator.py` for coroutines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.errors import ConfigError, IllegalStateError, TransactionDoomedError
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter
from tests.crash.awaited import AwaitedScenario
from tests.crash.scenario import InjectedError
from tests.recipes.test_decorator import Conflict


@pytest.fixture
def writer(awaited: AwaitedScenario) -> Iterator[AsyncDualWriter]:
    with awaited.writer() as made:
        yield made.awaited


async def put(tx: AsyncDualTransaction, awaited: AwaitedScenario, number: int) -> None:
    await awaited.insert(tx, number, str(number))
    tx.send(awaited.topic, value=str(number), key="k")


async def test_a_call_is_a_dual_write(awaited: AwaitedScenario, writer: AsyncDualWriter) -> None:
    @writer.transactional
    async def place(tx: AsyncDualTransaction, number: int, *, fails: bool = False) -> str:
        """Places."""
        await put(tx, awaited, number)
        if fails:
            raise InjectedError
        return f"placed {number}"

    answer: str = await place(1)
    assert answer == "placed 1"
    with pytest.raises(InjectedError):
        await place(2, fails=True)
    assert (place.__name__, place.__doc__) == ("place", "Places.")
    assert inspect.iscoroutinefunction(place)
    assert str(inspect.signature(place)) == "(number: 'int', *, fails: 'bool' = False) -> 'str'"
    awaited.assert_both_sides_agree("1")


async def test_methods(awaited: AwaitedScenario, writer: AsyncDualWriter) -> None:
    class Shop:
        @writer.transactional
        async def place(self, tx: AsyncDualTransaction, number: int) -> Shop:
            await put(tx, awaited, number)
            return self

    shop = Shop()
    assert await shop.place(1) is shop
    awaited.assert_both_sides_agree("1")


async def test_calls_inside_a_call_or_a_block_join_it(awaited: AwaitedScenario, writer: AsyncDualWriter) -> None:
    seen: list[AsyncDualTransaction] = []

    @writer.transactional
    async def inner(tx: AsyncDualTransaction, number: int) -> None:
        await put(tx, awaited, number)
        seen.append(tx)

    @writer.transactional
    async def outer(tx: AsyncDualTransaction) -> None:
        await put(tx, awaited, 1)
        await inner(2)
        assert seen == [tx]
        assert tx.outcome is None

    await outer()
    async with writer.transaction() as tx:
        await inner(3)
        assert seen[-1] is tx
    awaited.assert_both_sides_agree("1", "2", "3")


async def test_what_joined_and_failed_dooms_the_whole_even_if_that_is_caught(
    awaited: AwaitedScenario, writer: AsyncDualWriter
) -> None:
    @writer.transactional
    async def inner(tx: AsyncDualTransaction) -> None:
        await put(tx, awaited, 2)
        raise InjectedError

    with pytest.raises(TransactionDoomedError):
        async with writer.transaction() as tx:
            await put(tx, awaited, 1)
            with pytest.raises(InjectedError):
                await inner()
    awaited.assert_both_sides_agree()


async def test_a_savepoint_undoes_only_what_the_call_did(awaited: AwaitedScenario, writer: AsyncDualWriter) -> None:
    @writer.transactional(inside="savepoint")
    async def inner(tx: AsyncDualTransaction, number: int, fails: bool) -> None:
        await put(tx, awaited, number)
        if fails:
            raise InjectedError

    async with writer.transaction() as tx:
        await put(tx, awaited, 1)
        with pytest.raises(InjectedError):
            await inner(2, fails=True)
        await inner(3, fails=False)
    await inner(4, fails=False)
    awaited.assert_both_sides_agree("1", "3", "4")


async def test_a_task_that_a_block_starts_is_not_inside(awaited: AwaitedScenario, writer: AsyncDualWriter) -> None:
    """It must not use a Session that this one is using."""

    @writer.transactional
    async def place(tx: AsyncDualTransaction) -> None:
        await put(tx, awaited, 2)

    async with writer.transaction() as tx:
        await put(tx, awaited, 1)
        with pytest.raises(IllegalStateError, match="already carries a dual write"):
            await asyncio.create_task(place())
    awaited.assert_both_sides_agree("1")


async def test_functions_of_a_pool_in_many_tasks(awaited: AwaitedScenario) -> None:
    async with AsyncDualWriter(
        awaited.engine,
        prefix=awaited.transactional_id,
        max_writers=1,
        bootstrap_servers=awaited.emulator.bootstrap_servers,
    ) as pool:

        @pool.transactional
        async def inner(tx: AsyncDualTransaction, number: int) -> None:
            await put(tx, awaited, number)

        @pool.transactional(inside="refuse")
        async def outer(tx: AsyncDualTransaction, number: int) -> None:
            await put(tx, awaited, number)
            await inner(number + 1)

        await outer(1)
        await outer(3)
        await asyncio.gather(*(inner(number) for number in (5, 5, 5)), return_exceptions=True)
    awaited.assert_both_sides_agree("1", "2", "3", "4", "5")


@pytest.mark.parametrize(("retries", "error"), [(2, Conflict()), (1, Conflict()), (5, InjectedError())])
async def test_what_is_tried_again(
    awaited: AwaitedScenario, retries: int, error: BaseException, writer: AsyncDualWriter
) -> None:
    is_enough = retries == 2
    calls: list[int] = []

    @writer.transactional(retries=retries)
    async def fails_twice(tx: AsyncDualTransaction) -> None:
        await put(tx, awaited, 1)
        calls.append(1)
        if len(calls) < 3:
            raise error

    if is_enough:
        await fails_twice()
    else:
        with pytest.raises(type(error)):
            await fails_twice()
    awaited.assert_both_sides_agree(*(["1"] if is_enough else []))


def test_misuse(awaited: AwaitedScenario) -> None:
    writer: Any = awaited.awaited_writer()

    def blocks(tx: AsyncDualTransaction) -> None: ...

    async def without(item: str) -> None: ...

    with pytest.raises(ConfigError, match="is not a coroutine function"):
        writer.transactional(blocks)
    with pytest.raises(ConfigError, match="`tx`"):
        writer.transactional(without)
    with pytest.raises(ConfigError, match="retries takes"):
        writer.transactional(retries=-1)
