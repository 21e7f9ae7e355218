"""The matrix of faults with a driver alone: psycopg, asyncpg.

All of it with `PsycopgDualWriter` and `AsyncpgDualWriter`, and the possible effects of asyncio with
`AsyncPsycopgDualWriter`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.testing.postgres import PostgresServer
from tests.crash.asyncpg_scenario import AsyncpgScenario, asyncpg_scenario
from tests.crash.awaited import AwaitedWriter
from tests.crash.matrix import (
    FaultKind,
    Survivor,
    cases_with_predecessors,
    check_a_fault_at_a_point,
    check_a_fault_of_a_ready_writer,
    check_a_kill_at_a_point,
)
from tests.crash.psycopg_scenario import AwaitedPsycopgScenario, PsycopgScenario, awaited_psycopg_scenario
from tests.crash.scenario import (
    POINTS_AFTER_LOCK,
    POINTS_AFTER_THE_DECISION,
    POINTS_BEFORE_COMMIT_REQUEST,
    AtPoint,
    Predecessor,
    ScenarioOf,
    event_texts,
)
from tests.support.databases import PostgresDatabase

# Before and after the decision.
_HEART = [PausePoint.BEFORE_DATABASE_COMMIT, PausePoint.AFTER_DATABASE_COMMIT]


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresDatabase]:
    made = PostgresDatabase(postgres_server)
    yield made
    made.close()


Blocking = PsycopgScenario | AsyncpgScenario
"""A scenario whose writers have the blocking names; it gets the whole matrix."""

Awaited = AwaitedPsycopgScenario | AsyncpgScenario


@pytest.fixture(params=["psycopg", "asyncpg"])
def scenario(request: pytest.FixtureRequest, postgres: PostgresDatabase, emulator: Emulator) -> Iterator[Blocking]:
    if request.param == "psycopg":
        yield PsycopgScenario(postgres, emulator)
    else:
        with asyncpg_scenario(postgres, emulator) as made:
            yield made


def worker_of(scenario: Blocking) -> Sequence[str]:
    """The options of the process that is killed."""
    return ("--psycopg", "blocking") if isinstance(scenario, PsycopgScenario) else ("--asyncpg",)


@pytest.fixture(params=["psycopg", "asyncpg"])
def cancelled(request: pytest.FixtureRequest, postgres: PostgresDatabase, emulator: Emulator) -> Iterator[Awaited]:
    with (awaited_psycopg_scenario if request.param == "psycopg" else asyncpg_scenario)(postgres, emulator) as made:
        yield made


@pytest.fixture
def awaited(postgres: PostgresDatabase, emulator: Emulator) -> Iterator[AwaitedPsycopgScenario]:
    with awaited_psycopg_scenario(postgres, emulator) as scenario:
        yield scenario


# Kafka's faults on a new writer do not concern the recipe.
_FAULTS = [(fault, Survivor.SAME_WRITER) for fault in FaultKind] + [
    (fault, Survivor.NEW_WRITER)
    for fault in (FaultKind.EXCEPTION, FaultKind.DATABASE_CUT, FaultKind.DATABASE_ANSWER_LOST)
]


@pytest.mark.parametrize(("fault", "survivor"), _FAULTS)
@pytest.mark.parametrize(("point", "predecessor"), cases_with_predecessors())
def test_a_fault_at_a_point(
    scenario: Blocking,
    point: PausePoint,
    predecessor: Predecessor,
    fault: FaultKind,
    survivor: Survivor,
) -> None:
    check_a_fault_at_a_point(scenario, point, predecessor, fault, survivor)


@pytest.mark.parametrize("point", PausePoint)
def test_a_kill_at_a_point(scenario: Blocking, point: PausePoint) -> None:
    check_a_kill_at_a_point(scenario, point, Predecessor.COMMITTED, *worker_of(scenario))


_OF_A_READY_WRITER = [*POINTS_AFTER_LOCK, *POINTS_AFTER_THE_DECISION]


@pytest.mark.parametrize(
    ("fault", "survivor"),
    [*((fault, Survivor.SAME_WRITER) for fault in FaultKind), (FaultKind.EXCEPTION, Survivor.NEW_WRITER)],
)
@pytest.mark.parametrize("point", _OF_A_READY_WRITER)
def test_a_fault_at_a_point_of_a_ready_writer(
    scenario: Blocking, point: PausePoint, fault: FaultKind, survivor: Survivor
) -> None:
    check_a_fault_of_a_ready_writer(scenario, point, fault, survivor)


@pytest.mark.parametrize("fault", [FaultKind.DATABASE_CUT, FaultKind.DATABASE_ANSWER_LOST])
@pytest.mark.parametrize("point", _OF_A_READY_WRITER)
def test_a_fault_at_a_point_of_the_awaited_ready_writer(
    awaited: AwaitedPsycopgScenario, point: PausePoint, fault: FaultKind
) -> None:
    check_a_fault_of_a_ready_writer(awaited, point, fault, Survivor.SAME_WRITER)


@pytest.mark.parametrize("point", _OF_A_READY_WRITER)
def test_a_kill_at_a_point_of_a_ready_writer(scenario: Blocking, point: PausePoint) -> None:
    check_a_kill_at_a_point(scenario, point, Predecessor.COMMITTED, *worker_of(scenario), "--ready")


@pytest.mark.parametrize("fault", [FaultKind.DATABASE_CUT, FaultKind.DATABASE_ANSWER_LOST])
@pytest.mark.parametrize("point", PausePoint)
def test_a_fault_at_a_point_of_the_awaited_one(
    awaited: AwaitedPsycopgScenario, point: PausePoint, fault: FaultKind
) -> None:
    check_a_fault_at_a_point(awaited, point, Predecessor.COMMITTED, fault, Survivor.SAME_WRITER)


@pytest.mark.parametrize("point", _HEART)
def test_a_kill_at_a_point_of_the_awaited_one(awaited: AwaitedPsycopgScenario, point: PausePoint) -> None:
    check_a_kill_at_a_point(awaited, point, Predecessor.COMMITTED, "--psycopg", "awaited")


_AT_COMMIT = (PausePoint.AFTER_PREPARE, *POINTS_BEFORE_COMMIT_REQUEST)

# After the last one nothing is awaited any more, so that a cancellation is the caller's affair.
_CANCELLED = [point for point in PausePoint if point is not PausePoint.AFTER_KAFKA_COMMIT]


@pytest.mark.parametrize("point", _CANCELLED)
def test_a_cancellation_at_a_point(cancelled: ScenarioOf[Any], point: PausePoint) -> None:
    """It strikes at the first await after the point; a later query gets the row's outcome."""
    cancelled.leave_behind(Predecessor.COMMITTED)
    hook = AtPoint(point, _cancel)
    with cancelled.writer(hook) as writer:
        _check_a_cancellation(cancelled, writer, hook, may_be_unresolved=point in _AT_COMMIT)


@pytest.mark.parametrize("point", [point for point in _OF_A_READY_WRITER if point in _CANCELLED])
def test_a_cancellation_at_a_point_of_a_ready_writer(cancelled: ScenarioOf[Any], point: PausePoint) -> None:
    hook = AtPoint(point, _cancel, armed=False)
    with cancelled.writer(hook) as writer:
        assert cancelled.write(writer, 0).error is None
        hook.arm()
        _check_a_cancellation(cancelled, writer, hook, may_be_unresolved=point in _AT_COMMIT)


def _cancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def _check_a_cancellation(
    cancelled: ScenarioOf[Any], writer: AwaitedWriter[Any], hook: AtPoint, *, may_be_unresolved: bool
) -> None:
    seen = cancelled.write(writer, 1)
    assert hook.struck
    assert isinstance(seen.error, asyncio.CancelledError)
    assert seen.error.__notes__
    if writer.state is SlotState.UNRESOLVED:
        assert may_be_unresolved
        (found,) = writer.recover()
        if found.outcome == "committed":
            cancelled.expected += event_texts("1")
    else:
        assert (seen.outcome == "committed") is (hook.point in POINTS_AFTER_THE_DECISION)
    assert cancelled.write(writer, 2).error is None
    cancelled.assert_both_sides_agree()
