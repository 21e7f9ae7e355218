"""Each pause point x each fault x each database x each predecessor x each survivor.

Faults of the broker or of the caller's own code have the same effect on every database, and are tried on one.

After the fault and the recovery the table, the topic and the caller's result must agree, nothing may be open, and the
next dual write must work.
"""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.matrix import (
    FaultKind,
    Survivor,
    cases_with_predecessors,
    check_a_fault_at_a_point,
    check_a_kill_at_a_point,
)
from tests.crash.scenario import Predecessor, Scenario
from tests.support.databases import Database, PostgresDatabase

_OF_THE_DATABASE = (FaultKind.DATABASE_CUT, FaultKind.DATABASE_ANSWER_LOST)


@pytest.mark.parametrize("survivor", Survivor)
@pytest.mark.parametrize("fault", _OF_THE_DATABASE)
@pytest.mark.parametrize(("point", "predecessor"), cases_with_predecessors())
def test_a_fault_of_the_database_at_a_point(
    database: Database,
    emulator: Emulator,
    point: PausePoint,
    predecessor: Predecessor,
    fault: FaultKind,
    survivor: Survivor,
) -> None:
    check_a_fault_at_a_point(Scenario(database, emulator), point, predecessor, fault, survivor)


@pytest.mark.parametrize("survivor", Survivor)
@pytest.mark.parametrize("fault", [fault for fault in FaultKind if fault not in _OF_THE_DATABASE])
@pytest.mark.parametrize(("point", "predecessor"), cases_with_predecessors())
def test_another_fault_at_a_point(
    postgres: PostgresDatabase,
    emulator: Emulator,
    point: PausePoint,
    predecessor: Predecessor,
    fault: FaultKind,
    survivor: Survivor,
) -> None:
    check_a_fault_at_a_point(Scenario(postgres, emulator), point, predecessor, fault, survivor)


@pytest.mark.parametrize(("point", "predecessor"), cases_with_predecessors())
def test_a_kill_at_a_point(database: Database, emulator: Emulator, point: PausePoint, predecessor: Predecessor) -> None:
    check_a_kill_at_a_point(Scenario(database, emulator), point, predecessor)
