"""`@writer.transactional`: functions whose call is a dual write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.errors import ConfigError, IllegalStateError, OutcomeUnknown, TransactionDoomedError
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from tests.crash.scenario import AtPoint, InjectedError, Scenario, losing_the_commit
from tests.recipes.pools import make_pool
from tests.recipes.steps import put
from tests.support.databases import SqliteDatabase, events
from tests.support.threads import in_threads


def test_a_call_is_a_dual_write(scenario: Scenario, writer: DualWriter) -> None:
    @writer.transactional
    def place(tx: DualTransaction, number: int, *, times: int = 1) -> str:
        """Places."""
        put(tx, scenario, number)
        return f"placed {number} x {times}"

    answer: str = place(1, times=2)
    assert answer == "placed 1 x 2"
    assert (place.__name__, place.__doc__) == ("place", "Places.")
    assert str(inspect.signature(place)) == "(number: 'int', *, times: 'int' = 1) -> 'str'"
    scenario.assert_both_sides_agree("1")


def test_an_exception_rolls_both_sides_back(scenario: Scenario, writer: DualWriter) -> None:
    @writer.transactional
    def place(tx: DualTransaction) -> None:
        put(tx, scenario, 1)
        raise InjectedError

    with pytest.raises(InjectedError):
        place()
    scenario.assert_both_sides_agree()


def test_methods(scenario: Scenario, writer: DualWriter) -> None:
    class Shop:
        @writer.transactional
        def place(self, tx: DualTransaction, number: int) -> Shop:
            put(tx, scenario, number)
            return self

        @classmethod
        @writer.transactional()
        def place_one(cls, tx: DualTransaction, number: int) -> type[Shop]:
            put(tx, scenario, number)
            return cls

        @staticmethod
        @writer.transactional
        def place_two(tx: DualTransaction, number: int) -> None:
            put(tx, scenario, number)

    shop = Shop()
    assert shop.place(1) is shop
    assert Shop.place(shop, number=2) is shop
    assert Shop.place_one(3) is Shop
    shop.place_two(4)
    scenario.assert_both_sides_agree("1", "2", "3", "4")


# ---- inside another one ---------------------------------------------------------------------------------------


def test_calls_inside_a_call_or_a_block_join_it(scenario: Scenario, writer: DualWriter) -> None:
    seen: list[DualTransaction] = []

    @writer.transactional
    def inner(tx: DualTransaction, number: int) -> None:
        put(tx, scenario, number)
        seen.append(tx)

    @writer.transactional
    def outer(tx: DualTransaction) -> None:
        put(tx, scenario, 1)
        inner(2)
        assert seen == [tx]
        assert tx.outcome is None

    outer()
    with writer.transaction() as tx:
        inner(3)
        assert seen[-1] is tx
    scenario.assert_both_sides_agree("1", "2", "3")


def test_what_joined_and_failed_dooms_the_whole_even_if_that_is_caught(scenario: Scenario, writer: DualWriter) -> None:
    @writer.transactional
    def inner(tx: DualTransaction) -> None:
        put(tx, scenario, 2)
        raise InjectedError

    with pytest.raises(TransactionDoomedError) as caught, writer.transaction() as tx:
        put(tx, scenario, 1)
        with pytest.raises(InjectedError) as failed:
            inner()
    assert caught.value.__cause__ is failed.value
    scenario.assert_both_sides_agree()


def test_a_savepoint_undoes_only_what_the_call_did(scenario: Scenario, writer: DualWriter) -> None:
    @writer.transactional(inside="savepoint")
    def inner(tx: DualTransaction, number: int, fails: bool) -> None:
        put(tx, scenario, number)
        if fails:
            raise InjectedError

    with writer.transaction() as tx:
        put(tx, scenario, 1)
        with pytest.raises(InjectedError):
            inner(2, fails=True)
        inner(3, fails=False)
    inner(4, fails=False)
    scenario.assert_both_sides_agree("1", "3", "4")


def test_who_refuses_to_be_a_part(scenario: Scenario, writer: DualWriter) -> None:
    @writer.transactional(inside="refuse")
    def alone(tx: DualTransaction, number: int) -> None:
        put(tx, scenario, number)

    with writer.transaction() as tx:
        put(tx, scenario, 1)
        with pytest.raises(IllegalStateError, match="did not run"):
            alone(2)
    alone(3)
    scenario.assert_both_sides_agree("1", "3")


def test_another_thread_is_not_inside(scenario: Scenario, writer: DualWriter) -> None:
    """It must not use a Session that this one is using."""

    @writer.transactional
    def place(tx: DualTransaction) -> None:
        put(tx, scenario, 2)

    with writer.transaction() as tx:
        put(tx, scenario, 1)
        with pytest.raises(IllegalStateError, match="already carries a dual write"):
            in_threads(place)
    scenario.assert_both_sides_agree("1")


def test_functions_of_a_pool(scenario: Scenario) -> None:
    with make_pool(scenario) as pool:
        assert isinstance(pool, DualWriter)

        @pool.transactional
        def inner(tx: DualTransaction, number: int) -> None:
            put(tx, scenario, number)

        @pool.transactional
        def outer(tx: DualTransaction) -> None:
            put(tx, scenario, 1)
            inner(2)

        outer()
        inner(3)
    scenario.assert_both_sides_agree("1", "2", "3")


# ---- again ----------------------------------------------------------------------------------------------------


class Conflict(sa.exc.OperationalError):
    """A database's refusal because of other transactions."""

    def __init__(self) -> None:
        class DriverError(Exception):
            sqlstate = "40P01"

        super().__init__("UPDATE", {}, DriverError("deadlock detected"))


@pytest.fixture
def fails_first(scenario: Scenario) -> Callable[[BaseException], Callable[[DualTransaction], None]]:
    def make(error: BaseException) -> Callable[[DualTransaction], None]:
        calls: list[int] = []

        def body(tx: DualTransaction) -> None:
            put(tx, scenario, 1)
            calls.append(1)
            if len(calls) < 3:
                raise error

        return body

    return make


Make = Callable[[BaseException], Callable[[DualTransaction], None]]


def test_a_conflict_is_tried_again_and_is_there_once(scenario: Scenario, writer: DualWriter, fails_first: Make) -> None:
    writer.transactional(retries=2)(fails_first(Conflict()))()
    scenario.assert_both_sides_agree("1")


@pytest.mark.parametrize(("retries", "error"), [(1, Conflict()), (0, Conflict()), (5, InjectedError())])
def test_what_is_not_tried_again(
    scenario: Scenario, writer: DualWriter, fails_first: Make, retries: int, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        writer.transactional(retries=retries)(fails_first(error))()
    scenario.assert_both_sides_agree()


def test_only_the_outermost_call_tries_again(scenario: Scenario, writer: DualWriter, fails_first: Make) -> None:
    inner = writer.transactional(retries=9)(fails_first(Conflict()))
    runs: list[int] = []

    @writer.transactional(retries=2)
    def outer(tx: DualTransaction) -> None:
        runs.append(1)
        inner()

    outer()
    assert len(runs) == 3
    scenario.assert_both_sides_agree("1")


@pytest.mark.parametrize("applied", [True, False])
def test_nothing_is_tried_again_after_an_outcome_that_nobody_knows(scenario: Scenario, applied: bool) -> None:
    runs: list[int] = []

    lose = losing_the_commit(scenario.database, applied=applied, and_database=True)
    with scenario.writer(lose, resolve_timeout_ms=1_000) as writer:

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
    """Two read the same rows and write conclusions from them: Postgres commits one, SQLite the writing one."""
    with writer.transaction() as tx:
        put(tx, scenario, 1)
    engine = scenario.database.engine
    isolated = (
        engine
        if isinstance(scenario.database, SqliteDatabase)
        else engine.execution_options(isolation_level="SERIALIZABLE")
    )
    with scenario.writer(session_factory=lambda: sa.orm.Session(isolated)) as serializable:
        runs: list[int] = []

        @serializable.transactional(retries=3)
        def raise_the_highest(tx: DualTransaction) -> None:
            runs.append(1)
            if isinstance(scenario.database, SqliteDatabase):
                tx.connection.exec_driver_sql("PRAGMA busy_timeout = 0")
                tx.connection.exec_driver_sql("BEGIN")
            highest = tx.session.scalar(sa.select(sa.func.max(events.c.id)))
            other = _Other(engine) if len(runs) == 1 else None
            if other is not None:
                other.change(highest)
            try:
                tx.session.execute(sa.update(events).where(events.c.id == highest).values(body=f"{highest} changed"))
                tx.send(scenario.topic, value="changed")
            finally:
                if other is not None:
                    other.close()

        raise_the_highest()
        assert len(runs) == 2


class _Other:
    """Changes the same event in the middle: committed on Postgres, still locked on SQLite."""

    def __init__(self, engine: sa.Engine) -> None:
        self._connection = engine.connect()
        self._commits = engine.dialect.name != "sqlite"

    def change(self, event_id: Any) -> None:
        self._connection.execute(sa.update(events).where(events.c.id == event_id).values(body="other"))
        if self._commits:
            self._connection.commit()

    def close(self) -> None:
        self._connection.rollback()
        self._connection.close()


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

    for function in (awaited, generated):
        with pytest.raises(ConfigError, match="too early"):
            writer.transactional(function)


@pytest.mark.parametrize("settings", [{"retries": -1}, {"retries": True}, {"retries": "3"}, {"inside": "new"}])
def test_wrong_settings(writer: DualWriter, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        writer.transactional(**settings)
