"""The matrix of faults with psycopg alone: all of it with `PsycopgDualWriter`, and what awaiting may change of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.testing.postgres import PostgresServer
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


@pytest.fixture
def blocking(postgres: PostgresDatabase, emulator: Emulator) -> PsycopgScenario:
    return PsycopgScenario(postgres, emulator)


@pytest.fixture
def awaited(postgres: PostgresDatabase, emulator: Emulator) -> Iterator[AwaitedPsycopgScenario]:
    with awaited_psycopg_scenario(postgres, emulator) as scenario:
        yield scenario


# What Kafka does to a new writer is no matter of the recipe.
_FAULTS = [(fault, Survivor.SAME_WRITER) for fault in FaultKind] + [
    (fault, Survivor.NEW_WRITER)
    for fault in (FaultKind.EXCEPTION, FaultKind.DATABASE_CUT, FaultKind.DATABASE_ANSWER_LOST)
]


@pytest.mark.parametrize(("fault", "survivor"), _FAULTS)
@pytest.mark.parametrize(("point", "predecessor"), cases_with_predecessors())
def test_a_fault_at_a_point(
    blocking: PsycopgScenario, point: PausePoint, predecessor: Predecessor, fault: FaultKind, survivor: Survivor
) -> None:
    check_a_fault_at_a_point(blocking, point, predecessor, fault, survivor)


@pytest.mark.parametrize("point", PausePoint)
def test_a_kill_at_a_point(blocking: PsycopgScenario, point: PausePoint) -> None:
    check_a_kill_at_a_point(blocking, point, Predecessor.COMMITTED, "--psycopg", "blocking")


_OF_A_READY_WRITER = [*POINTS_AFTER_LOCK, *POINTS_AFTER_THE_DECISION]


@pytest.mark.parametrize(
    ("fault", "survivor"),
    [*((fault, Survivor.SAME_WRITER) for fault in FaultKind), (FaultKind.EXCEPTION, Survivor.NEW_WRITER)],
)
@pytest.mark.parametrize("point", _OF_A_READY_WRITER)
def test_a_fault_at_a_point_of_a_ready_writer(
    blocking: PsycopgScenario, point: PausePoint, fault: FaultKind, survivor: Survivor
) -> None:
    check_a_fault_of_a_ready_writer(blocking, point, fault, survivor)


@pytest.mark.parametrize("fault", [FaultKind.DATABASE_CUT, FaultKind.DATABASE_ANSWER_LOST])
@pytest.mark.parametrize("point", _OF_A_READY_WRITER)
def test_a_fault_at_a_point_of_the_awaited_ready_writer(
    awaited: AwaitedPsycopgScenario, point: PausePoint, fault: FaultKind
) -> None:
    check_a_fault_of_a_ready_writer(awaited, point, fault, Survivor.SAME_WRITER)


@pytest.mark.parametrize("point", _OF_A_READY_WRITER)
def test_a_kill_at_a_point_of_a_ready_writer(blocking: PsycopgScenario, point: PausePoint) -> None:
    check_a_kill_at_a_point(blocking, point, Predecessor.COMMITTED, "--psycopg", "blocking", "--ready")


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
def test_a_cancellation_at_a_point(awaited: AwaitedPsycopgScenario, point: PausePoint) -> None:
    """It strikes at the first await after the point; who asks for the outcome then is told what the row says."""
    awaited.leave_behind(Predecessor.COMMITTED)
    hook = AtPoint(point, _cancel)
    with awaited.writer(hook) as writer:
        _check_a_cancellation(
            awaited, writer, hook, may_be_unresolved=point in (PausePoint.AFTER_PREPARE, *POINTS_BEFORE_COMMIT_REQUEST)
        )


@pytest.mark.parametrize("point", [point for point in _OF_A_READY_WRITER if point in _CANCELLED])
def test_a_cancellation_at_a_point_of_a_ready_writer(awaited: AwaitedPsycopgScenario, point: PausePoint) -> None:
    hook = AtPoint(point, _cancel, armed=False)
    with awaited.writer(hook) as writer:
        assert awaited.write(writer, 0).error is None
        hook.arm()
        _check_a_cancellation(awaited, writer, hook, may_be_unresolved=point in _AT_COMMIT)


def _cancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def _check_a_cancellation(
    awaited: AwaitedPsycopgScenario,
    writer: AwaitedWriter[AsyncPsycopgDualWriter],
    hook: AtPoint,
    *,
    may_be_unresolved: bool,
) -> None:
    seen = awaited.write(writer, 1)
    assert hook.struck
    assert isinstance(seen.error, asyncio.CancelledError)
    assert seen.error.__notes__
    if writer.state is SlotState.UNRESOLVED:
        assert may_be_unresolved
        if writer.resolve().outcome == "committed":
            awaited.expected += event_texts("1")
    else:
        assert (seen.outcome == "committed") is (hook.point in POINTS_AFTER_THE_DECISION)
    assert awaited.write(writer, 2).error is None
    awaited.assert_both_sides_agree()
