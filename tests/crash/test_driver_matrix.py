"""The matrix of faults with a driver alone: psycopg, asyncpg.

All of it with `PsycopgDualWriter` and `AsyncpgDualWriter`, and the possible effects of asyncio with
`AsyncPsycopgDualWriter`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.asyncpg_scenario import AsyncpgScenario, asyncpg_scenario
from tests.crash.matrix import (
    FaultKind,
    Survivor,
    cancel,
    cases_with_predecessors,
    check_a_cancellation,
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
)
from tests.support.databases import PostgresDatabase

# Before and after the decision.
_HEART = [PausePoint.BEFORE_DATABASE_COMMIT, PausePoint.AFTER_DATABASE_COMMIT]


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
    cancelled.leave_behind(Predecessor.COMMITTED)
    hook = AtPoint(point, cancel)
    with cancelled.writer(hook) as writer:
        assert check_a_cancellation(cancelled, writer, hook, may_be_unresolved=_AT_COMMIT).__notes__


@pytest.mark.parametrize("point", [point for point in _OF_A_READY_WRITER if point in _CANCELLED])
def test_a_cancellation_at_a_point_of_a_ready_writer(cancelled: ScenarioOf[Any], point: PausePoint) -> None:
    hook = AtPoint(point, cancel, armed=False)
    with cancelled.writer(hook) as writer:
        assert cancelled.write(writer, 0).error is None
        hook.arm()
        assert check_a_cancellation(cancelled, writer, hook, may_be_unresolved=_AT_COMMIT).__notes__
