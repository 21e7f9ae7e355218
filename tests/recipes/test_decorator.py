"""`@writer.transactional`: functions whose call is a dual write, and coroutine functions with a writer for asyncio."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import copy_context
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.errors import ConfigError, IllegalStateError, OutcomeUnknown, TransactionDoomedError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter
from dualwrite.recipes.writer import _innermost
from tests.crash.awaited import AwaitedScenario
from tests.crash.conftest import AWAITED
from tests.crash.scenario import AtPoint, InjectedError, Scenario, losing_the_commit
from tests.recipes.faces import INSERT, ON_ASYNCPG, Face
from tests.recipes.pools import make_pool
from tests.recipes.steps import put
from tests.support.databases import events
from tests.support.threads import in_threads
from tests.support.writers import entered, got

# ---- functions and coroutine functions ------------------------------------------------------------------------

Steps = Callable[..., Coroutine[Any, Any, Any]]
"""Written as a coroutine function, which a writer for threads is given as a function."""


each_kind = pytest.mark.parametrize(
    "face", ["sqlite", "psycopg", "asyncio psycopg", "asyncio asyncpg-alone"], indirect=True
)


def fitting(face: Face, steps: Steps) -> Callable[..., Any]:
    if face.name in AWAITED:
        return steps

    @functools.wraps(steps)
    def function(*arguments: Any, **keywords: Any) -> Any:
        return blocking.run(steps(*arguments, **keywords))

    return function


def transactional(face: Face, **settings: Any) -> Callable[[Steps], Callable[..., Any]]:
    """Decorate with the face's writer."""
    return lambda steps: writer_of(face).transactional(**settings)(fitting(face, steps))


def writer_of(face: Face) -> Any:
    return getattr(face.writer, "awaited", face.writer)


async def put_with(face: Face, tx: Any, number: int) -> None:
    """One event to both sides."""
    text = INSERT.format(number)
    await got(tx.session.execute(sa.text(text)) if face.is_on_sqlalchemy else tx.connection.execute(text))
    face.send(tx, str(number))


@each_kind
def test_a_call_is_a_dual_write(face: Face) -> None:
    @transactional(face)
    async def place(tx: Any, number: int, *, fails: bool = False) -> str:
        """Places."""
        await put_with(face, tx, number)
        if fails:
            raise InjectedError
        return f"placed {number}"

    assert face.run(place(1)) == "placed 1"
    with pytest.raises(InjectedError):
        face.run(place(2, fails=True))
    assert (place.__name__, place.__doc__) == ("place", "Places.")
    assert inspect.iscoroutinefunction(place) is (face.name in AWAITED)
    assert str(inspect.signature(place)) == "(number: 'int', *, fails: 'bool' = False) -> 'str'"
    face.scenario.assert_both_sides_agree("1")


@each_kind
def test_methods(face: Face) -> None:
    @functools.partial(fitting, face)
    async def step(self: Any, tx: Any, number: int) -> Any:
        await put_with(face, tx, number)
        return self

    @transactional(face)
    async def static(tx: Any, number: int) -> None:
        await put_with(face, tx, number)

    class Shop:
        place = writer_of(face).transactional(step)
        place_one: Any = classmethod(writer_of(face).transactional()(step))
        place_two = staticmethod(static)

    shop = Shop()
    assert face.run(shop.place(1)) is shop
    assert face.run(Shop.place(shop, number=2)) is shop
    assert face.run(Shop.place_one(3)) is Shop
    face.run(shop.place_two(4))
    face.scenario.assert_both_sides_agree("1", "2", "3", "4")


@each_kind
def test_calls_inside_a_call_or_a_block_join_it(face: Face) -> None:
    seen: list[Any] = []

    @transactional(face)
    async def inner(tx: Any, number: int) -> None:
        await put_with(face, tx, number)
        seen.append(tx)

    @transactional(face)
    async def outer(tx: Any) -> None:
        await put_with(face, tx, 1)
        await got(inner(2))
        assert seen == [tx]
        assert tx.outcome is None

    async def in_a_block() -> None:
        async with entered(writer_of(face).transaction()) as tx:
            await got(inner(3))
            assert seen[-1] is tx

    face.run(outer())
    face.run(in_a_block())
    face.scenario.assert_both_sides_agree("1", "2", "3")


@each_kind
def test_a_failed_joined_call_dooms_the_whole_block_even_if_its_error_is_caught(face: Face) -> None:
    @transactional(face)
    async def inner(tx: Any) -> None:
        await put_with(face, tx, 2)
        raise InjectedError

    async def in_a_block() -> None:
        with pytest.raises(TransactionDoomedError) as caught:
            async with entered(writer_of(face).transaction()) as tx:
                await put_with(face, tx, 1)
                with pytest.raises(InjectedError) as failed:
                    await got(inner())
        assert caught.value.__cause__ is failed.value

    face.run(in_a_block())
    face.scenario.assert_both_sides_agree()


@each_kind
def test_a_part_of_a_block_with_and_without_a_savepoint(face: Face) -> None:
    @transactional(face, inside="savepoint")
    async def part(tx: Any, number: int, fails: bool) -> None:
        await put_with(face, tx, number)
        if fails:
            raise InjectedError

    @transactional(face, inside="refuse")
    async def alone(tx: Any, number: int) -> None:
        await put_with(face, tx, number)

    async def in_a_block() -> None:
        async with entered(writer_of(face).transaction()) as tx:
            await put_with(face, tx, 1)
            with pytest.raises(InjectedError):
                await got(part(2, fails=True))
            await got(part(3, fails=False))
            with pytest.raises(IllegalStateError, match="did not run"):
                await got(alone(4))

    face.run(in_a_block())
    face.run(part(5, fails=False))
    face.run(alone(6))
    face.scenario.assert_both_sides_agree("1", "3", "5", "6")


def test_another_thread_is_not_inside(scenario: Scenario, writer: DualWriter) -> None:
    """The other call must not use a Session that this call is using."""

    @writer.transactional
    def place(tx: DualTransaction) -> None:
        put(tx, scenario, 2)

    with writer.transaction() as tx:
        put(tx, scenario, 1)
        with pytest.raises(IllegalStateError, match="already carries a dual write"):
            in_threads(place)
    scenario.assert_both_sides_agree("1")


# ---- blocks that end elsewhere, or out of order ---------------------------------------------------------------


@pytest.fixture
def pool(scenario: Scenario) -> Iterator[DualWriter]:
    with make_pool(scenario) as made:
        assert isinstance(made, DualWriter)
        yield made


@pytest.fixture
def place(scenario: Scenario, pool: DualWriter) -> Callable[[int], DualTransaction]:
    @pool.transactional
    def write(tx: DualTransaction, number: int) -> DualTransaction:
        put(tx, scenario, number)
        return tx

    return write


def fail(block: AbstractContextManager[DualTransaction]) -> None:
    error = InjectedError()
    block.__exit__(type(error), error, None)


def test_a_block_that_ended_in_another_thread_is_not_joined(
    scenario: Scenario, pool: DualWriter, place: Callable[[int], DualTransaction]
) -> None:
    """As a generator's block, of which a framework calls each step in any thread."""
    with ThreadPoolExecutor(1) as first:
        block = pool.transaction()
        put(first.submit(block.__enter__).result(), scenario, 1)
        fail(block)
        first.submit(place, 2).result()
    scenario.assert_both_sides_agree("2")


def test_blocks_that_end_in_the_order_in_which_they_began(
    scenario: Scenario, pool: DualWriter, place: Callable[[int], DualTransaction]
) -> None:
    first, second = pool.transaction(), pool.transaction()
    first.__enter__()
    inner = second.__enter__()
    fail(first)
    assert place(1) is inner
    second.__exit__(None, None, None)
    assert place(2) is not inner
    scenario.assert_both_sides_agree("1", "2")


def test_ended_blocks_that_overlapped_are_forgotten(pool: DualWriter) -> None:
    """Each is open when the next begins, so that none is the outermost of its time."""
    last = pool.transaction()
    last.__enter__()
    for _ in range(20):
        following = pool.transaction()
        following.__enter__()
        fail(last)
        last = following
    fail(last)
    kept, entered_last = 0, _innermost.get()
    while entered_last is not None:
        kept, entered_last = kept + 1, entered_last.outer
    assert kept <= 2


def test_a_forked_child_is_not_inside(
    scenario: Scenario, pool: DualWriter, place: Callable[[int], DualTransaction]
) -> None:
    """Two processes must not use one connection."""
    with suppress(InjectedError), pool.transaction() as tx:
        put(tx, scenario, 1)
        child = copy_context().run(os.fork)
        if child == 0:
            try:
                scenario.database.engine.dispose(close=False)
                os._exit(0 if place(2).outcome is Outcome.COMMITTED else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        raise InjectedError
    scenario.assert_both_sides_agree("2")


def test_a_block_entered_in_another_context_of_the_thread_is_not_joined(
    scenario: Scenario, pool: DualWriter, place: Callable[[int], DualTransaction]
) -> None:
    """FastAPI enters a blocking dependency so, in a thread that serves other requests before it ends."""
    block = pool.transaction()
    copy_context().run(block.__enter__).send(scenario.topic, key="k", value="1")
    place(2)
    fail(block)
    scenario.assert_both_sides_agree("2")


async def test_a_block_for_threads_that_a_task_holds_while_it_waits_is_not_joined_by_another(
    scenario: Scenario, pool: DualWriter, place: Callable[[int], DualTransaction]
) -> None:
    is_inside, may_end = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        with pool.transaction() as tx:
            tx.send(scenario.topic, key="k", value="1")
            is_inside.set()
            await may_end.wait()
            raise InjectedError

    holder = asyncio.create_task(hold())
    await is_inside.wait()
    place(2)
    may_end.set()
    with pytest.raises(InjectedError):
        await holder
    scenario.assert_both_sides_agree("2")


def test_a_loop_that_runs_inside_a_block_is_inside(
    scenario: Scenario, pool: DualWriter, place: Callable[[int], DualTransaction]
) -> None:
    async def in_a_task() -> DualTransaction:
        return place(1)

    with pool.transaction() as tx:
        assert asyncio.run(in_a_task()) is tx
    scenario.assert_both_sides_agree("1")


@pytest.fixture
def awaited_writer(awaited: AwaitedScenario) -> Iterator[AsyncDualWriter]:
    with awaited.writer() as made:
        yield made.awaited


async def put_awaited(tx: AsyncDualTransaction, awaited: AwaitedScenario, number: int) -> None:
    await awaited.insert(tx, number, str(number))
    tx.send(awaited.topic, value=str(number), key="k")


async def test_a_task_that_a_block_starts_is_not_inside(
    awaited: AwaitedScenario, awaited_writer: AsyncDualWriter
) -> None:
    """The other call must not use a Session that this call is using."""

    @awaited_writer.transactional
    async def place(tx: AsyncDualTransaction) -> None:
        await put_awaited(tx, awaited, 2)

    async with awaited_writer.transaction() as tx:
        await put_awaited(tx, awaited, 1)
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
            await put_awaited(tx, awaited, number)

        @pool.transactional(inside="refuse")
        async def outer(tx: AsyncDualTransaction, number: int) -> None:
            await put_awaited(tx, awaited, number)
            await inner(number + 1)

        await outer(1)
        await outer(3)
        await asyncio.gather(*(inner(number) for number in (5, 5, 5)), return_exceptions=True)
    awaited.assert_both_sides_agree("1", "2", "3", "4", "5")


# ---- again ----------------------------------------------------------------------------------------------------


class Conflict(sa.exc.OperationalError):
    """A database's refusal because of other transactions."""

    def __init__(self) -> None:
        super().__init__("UPDATE", {}, psycopg.errors.DeadlockDetected("deadlock detected"))


def conflict_of(face: Face) -> Exception:
    """Return a database's refusal because of other transactions, as the face's library raises it."""
    if face.is_on_sqlalchemy:
        return Conflict()
    return asyncpg.DeadlockDetectedError() if face.name in ON_ASYNCPG else psycopg.errors.DeadlockDetected()


def failing(face: Face, error: BaseException, calls: list[int]) -> Steps:
    """Make a function whose first two calls raise `error`."""

    async def steps(tx: Any) -> None:
        await put_with(face, tx, 1)
        calls.append(1)
        if len(calls) < 3:
            raise error

    return steps


@each_kind
@pytest.mark.parametrize("retries", [1, 0, 5], ids=["too often", "not", "no conflict"])
def test_errors_that_are_not_retried(face: Face, retries: int) -> None:
    error = InjectedError() if retries == 5 else conflict_of(face)
    with pytest.raises(type(error)):
        face.run(transactional(face, retries=retries)(failing(face, error, []))())
    face.scenario.assert_both_sides_agree()


@each_kind
def test_only_the_outermost_call_tries_a_conflict_again(face: Face) -> None:
    calls: list[int] = []
    inner = transactional(face, retries=9)(failing(face, conflict_of(face), calls))

    @transactional(face, retries=2)
    async def outer(tx: Any) -> None:
        await got(inner())

    face.run(outer())
    assert len(calls) == 3
    face.scenario.assert_both_sides_agree("1")


@pytest.mark.usefixtures("asks_twice")
@pytest.mark.parametrize("applied", [True, False])
def test_nothing_is_tried_again_after_an_outcome_that_nobody_knows(scenario: Scenario, applied: bool) -> None:
    runs: list[int] = []

    lose = losing_the_commit(scenario.database, applied=applied, and_database=True)
    with scenario.writer(lose) as writer:

        @writer.transactional(retries=5)
        def place(tx: DualTransaction) -> None:
            runs.append(1)
            put(tx, scenario, 1)

        with pytest.raises(OutcomeUnknown):
            place()
        assert len(runs) == 1
        scenario.database.come_back()
        assert [found.outcome for found in writer.recover()] == [Outcome.COMMITTED if applied else Outcome.ROLLED_BACK]
    scenario.expected += ["1"] if applied else []
    scenario.assert_both_sides_agree()


def test_nothing_is_tried_again_after_the_decision(scenario: Scenario) -> None:
    def conflict() -> None:
        raise Conflict

    runs: list[int] = []
    with scenario.writer(AtPoint(PausePoint.AFTER_DATABASE_COMMIT, conflict)) as writer:

        @writer.transactional(retries=5)
        def place(tx: DualTransaction) -> None:
            runs.append(1)
            put(tx, scenario, 1)

        with pytest.raises(Conflict):
            place()
        assert len(runs) == 1
        writer.recover()
    scenario.assert_both_sides_agree("1")


def test_a_real_conflict(scenario: Scenario, writer: DualWriter) -> None:
    """Two read the same rows and write conclusions from them: the database commits one."""
    with writer.transaction() as tx:
        put(tx, scenario, 1)
    engine = scenario.database.engine
    isolated = engine.execution_options(isolation_level="SERIALIZABLE")
    with scenario.writer(session_factory=lambda: sa.orm.Session(isolated)) as serializable:
        runs: list[int] = []

        @serializable.transactional(retries=3)
        def raise_the_highest(tx: DualTransaction) -> None:
            runs.append(1)
            highest = tx.session.scalar(sa.select(sa.func.max(events.c.id)))
            change = sa.update(events).where(events.c.id == highest)
            if len(runs) == 1:
                with engine.begin() as other:
                    other.execute(change.values(body="other"))
            tx.session.execute(change.values(body=f"{highest} changed"))
            tx.send(scenario.topic, value="changed")

        raise_the_highest()
        assert len(runs) == 2


# ---- misuse ---------------------------------------------------------------------------------------------------


def test_functions_without_a_place_for_the_dual_write(writer: DualWriter) -> None:
    def without(item: str) -> None: ...

    def too_late(self: object, item: str, tx: DualTransaction) -> None: ...

    for function in (without, too_late):
        with pytest.raises(ConfigError, match="`tx`"):
            writer.transactional(function)  # type: ignore[arg-type]


def test_functions_that_return_before_they_have_run(writer: DualWriter) -> None:
    async def awaited(tx: DualTransaction) -> None: ...

    def generated(tx: DualTransaction) -> Iterator[int]:
        yield 1

    async def both(tx: DualTransaction) -> AsyncIterator[int]:
        yield 1

    for function in (awaited, generated, both):
        with pytest.raises(ConfigError, match="too early"):
            writer.transactional(function)


@each_kind
def test_a_call_whose_body_would_run_after_its_block_changes_nothing(face: Face) -> None:
    """A wrapper hides that from the decorator."""

    async def generated(tx: Any) -> AsyncIterator[None]:
        yield

    def cases() -> Iterator[Callable[[Any], Any]]:
        yield lambda tx: (number for number in (1, 2))
        yield generated
        yield contextmanager(lambda tx: (number for number in (1, 2)))
        yield asynccontextmanager(generated)

    for case in cases():

        @transactional(face)
        async def place(tx: Any, case: Callable[[Any], Any]) -> Any:
            await put_with(face, tx, 1)
            return case(tx)

        with pytest.raises(ConfigError, match="too early") as raised:
            face.run(place(case))
        assert raised.value.outcome is Outcome.ROLLED_BACK
    face.scenario.assert_both_sides_agree()


def test_a_wrapped_coroutine_function_is_refused_by_a_writer_for_threads(
    scenario: Scenario, writer: DualWriter
) -> None:
    async def awaited(tx: DualTransaction) -> None: ...

    made = []

    @writer.transactional
    def place(tx: DualTransaction) -> object:
        made.append(awaited(tx))
        return made[0]

    with pytest.raises(ConfigError, match="returned a coroutine"):
        place()
    made[0].close()
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("settings", [{"retries": -1}, {"retries": True}, {"retries": "3"}, {"inside": "new"}])
def test_wrong_settings(writer: DualWriter, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        writer.transactional(**settings)


def test_functions_that_no_writer_for_asyncio_takes(awaited: AwaitedScenario) -> None:
    writer: Any = awaited.awaited_writer()

    def blocks(tx: AsyncDualTransaction) -> None: ...

    async def without(item: str) -> None: ...

    with pytest.raises(ConfigError, match="is not a coroutine function"):
        writer.transactional(blocks)
    with pytest.raises(ConfigError, match="`tx`"):
        writer.transactional(without)
    with pytest.raises(ConfigError, match="retries takes"):
        writer.transactional(retries=-1)
