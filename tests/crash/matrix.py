"""The effect of each fault at each pause point on a dual write, and the invariants after it, for any kind of writer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any

import pytest

from dualwrite.broker_emulator import DropReply, Fault
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from tests.crash.killed import run_until_killed_at
from tests.crash.scenario import (
    POINTS_AFTER_THE_DECISION,
    POINTS_BEFORE_WRITE_AND_COMMIT,
    POINTS_OF_A_TAKE_OVER,
    AnyScenario,
    AtPoint,
    InjectedError,
    Predecessor,
    event_texts,
    losing_the_commit,
)
from tests.support.databases import Database


class FaultKind(StrEnum):
    EXCEPTION = "exception"
    DATABASE_CUT = "database-cut"
    BROKER_CUT = "broker-cut"
    DATABASE_ANSWER_LOST = "database-answer-lost"
    BROKER_ANSWER_LOST = "broker-answer-lost"


class Survivor(StrEnum):
    """The process that does the next dual write."""

    SAME_WRITER = "same-writer"
    NEW_WRITER = "new-writer"


def takes_effect(scenario: AnyScenario, point: PausePoint, fault: FaultKind) -> bool:
    """The recipe's promise for one fault at one point."""
    if fault in (FaultKind.BROKER_CUT, FaultKind.BROKER_ANSWER_LOST) or point in POINTS_AFTER_THE_DECISION:
        return True
    # The request that follows these points is COMMIT itself: losing its response does not undo it.
    return fault is FaultKind.DATABASE_ANSWER_LOST and point in scenario.points_before_commit_request


def takes_effect_when_ready(scenario: AnyScenario, point: PausePoint, fault: FaultKind) -> bool:
    """The same of a ready writer, whose COMMIT carries the state and directly follows the lock."""
    sends_nothing = scenario.points_before_commit_request == POINTS_BEFORE_WRITE_AND_COMMIT
    return takes_effect(scenario, point, fault) or (sends_nothing and fault is FaultKind.DATABASE_ANSWER_LOST)


def raises(scenario: AnyScenario, point: PausePoint, fault: FaultKind) -> bool:
    return fault is FaultKind.EXCEPTION or not takes_effect(scenario, point, fault)


def strike(fault: FaultKind, database: Database, emulator: Emulator) -> Callable[[], None]:
    def throw() -> None:
        raise InjectedError

    return {
        FaultKind.EXCEPTION: throw,
        FaultKind.DATABASE_CUT: database.cut,
        FaultKind.BROKER_CUT: lambda: _ignore(emulator.disconnect_clients()),
        FaultKind.DATABASE_ANSWER_LOST: database.lose_answer,
        FaultKind.BROKER_ANSWER_LOST: lambda: _ignore(emulator.faults.add(Fault(action=DropReply()))),
    }[fault]


def _ignore(result: object) -> None:
    return None


def cases_with_predecessors() -> list[tuple[PausePoint, Predecessor]]:
    cases = [(point, Predecessor.COMMITTED) for point in PausePoint]
    return cases + [(point, Predecessor.ROLLED_BACK) for point in POINTS_OF_A_TAKE_OVER]


def go_on(scenario: AnyScenario, survivor: Survivor, writer: Any) -> None:
    """Write again after a fault, by the same writer or by a new one that recovers first."""
    if survivor is Survivor.NEW_WRITER:
        writer = scenario.writer()
        writer.recover()
        scenario.assert_both_sides_agree()
    assert scenario.write(writer, 2).error is None
    assert writer.state is SlotState.READY
    scenario.assert_both_sides_agree()
    writer.close()


def check_a_fault_at_a_point(
    scenario: AnyScenario, point: PausePoint, predecessor: Predecessor, fault: FaultKind, survivor: Survivor
) -> None:
    """After the fault and the recovery both sides agree, nothing is open, and the next dual write works."""
    scenario.leave_behind(predecessor)
    hook = AtPoint(point, strike(fault, scenario.database, scenario.emulator))
    writer = scenario.writer(hook)

    seen = scenario.write(writer, 1)

    assert hook.struck
    assert seen.took_effect is takes_effect(scenario, point, fault)
    assert (seen.error is not None) is raises(scenario, point, fault)
    if fault is FaultKind.EXCEPTION:
        assert isinstance(seen.error, InjectedError)
    scenario.database.disarm()
    go_on(scenario, survivor, writer)


def check_a_fault_of_a_ready_writer(
    scenario: AnyScenario, point: PausePoint, fault: FaultKind, survivor: Survivor
) -> None:
    """`check_a_fault_at_a_point` of a writer that has written before, and so knows its row and its next identity."""
    hook = AtPoint(point, strike(fault, scenario.database, scenario.emulator), armed=False)
    writer = scenario.writer(hook)
    assert scenario.write(writer, 0).error is None
    hook.arm()

    seen = scenario.write(writer, 1)

    assert hook.struck
    assert seen.took_effect is takes_effect_when_ready(scenario, point, fault)
    assert (seen.error is not None) is (fault is FaultKind.EXCEPTION or not seen.took_effect)
    scenario.database.disarm()
    go_on(scenario, survivor, writer)


def check_a_kill_at_a_point(scenario: AnyScenario, point: PausePoint, predecessor: Predecessor, *options: str) -> None:
    """`options` are those of the worker: the kind of writer, and whether it is ready and so has no predecessor."""
    if "--ready" in options:
        scenario.expected += event_texts("0")
    else:
        scenario.leave_behind(predecessor)
    run_until_killed_at(point, scenario, *options)
    if point in POINTS_AFTER_THE_DECISION:
        scenario.expected += event_texts("1")
    with scenario.writer() as writer:
        writer.recover()
        scenario.assert_both_sides_agree()
        assert scenario.write(writer, 2).error is None
        scenario.assert_both_sides_agree()


def check_a_lost_commit(scenario: AnyScenario, *, applied: bool) -> None:
    """Where the database answers, the outcome is found at once."""
    with scenario.writer(losing_the_commit(scenario.database, applied=applied)) as writer:
        seen = scenario.write(writer, 1)
        assert seen.took_effect is applied
        assert (seen.error is None) is applied
        assert writer.state is SlotState.READY
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


RESOLVERS = ["resolve", "next write", "next process"]


def check_a_commit_that_is_lost_with_the_database(
    scenario: AnyScenario, resolver: str, *, applied: bool, has_row: bool = False
) -> None:
    """The outcome is unknown until the database is back; with `has_row`, the row is there before the write.

    The test has the fixture `asks_twice`.
    """
    lose = losing_the_commit(scenario.database, applied=applied, and_database=True)
    writer = scenario.writer(lose)
    if has_row:
        writer.recover()
    seen = scenario.write(writer, 1)
    assert isinstance(seen.error, OutcomeUnknown)
    assert seen.outcome is None
    assert seen.error.transactional_id == scenario.transactional_id
    assert seen.error.prepared_state
    assert "recover()" in str(seen.error)
    assert writer.state is SlotState.UNRESOLVED
    with pytest.raises(OutcomeUnknown):
        writer.recover()

    scenario.database.come_back()
    scenario.expected += event_texts("1") if applied else []
    expected_outcome = Outcome.COMMITTED if applied else Outcome.ROLLED_BACK
    if resolver == "resolve":
        (resolution,) = writer.recover()
        assert resolution.outcome is expected_outcome
        assert str(resolution.prepared_state) == seen.error.prepared_state
        scenario.assert_both_sides_agree()
        assert writer.recover() == []
    elif resolver == "next process":
        writer.close()
        writer = scenario.writer()
        assert [found.outcome for found in writer.recover()] == [expected_outcome]
        scenario.assert_both_sides_agree()
    assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()
    writer.close()


def cancel() -> None:
    """Cancel the current task."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def check_a_cancellation(
    scenario: AnyScenario, writer: Any, hook: AtPoint, *, may_be_unresolved: Collection[PausePoint]
) -> None:
    """It strikes at the first await after the point; a later query gets the row's outcome."""
    seen = scenario.write(writer, 1)
    assert hook.struck
    assert isinstance(seen.error, asyncio.CancelledError)
    if writer.state is SlotState.UNRESOLVED:
        assert hook.point in may_be_unresolved
        (found,) = writer.recover()
        if found.outcome == "committed":
            scenario.expected += event_texts("1")
    else:
        assert (seen.outcome == "committed") is (hook.point in POINTS_AFTER_THE_DECISION)
    assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()
