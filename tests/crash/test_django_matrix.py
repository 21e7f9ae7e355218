"""The matrix of faults and kills for `transaction.atomic()` of Django, whose ids are leased."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.django_scenario import DjangoScenario
from tests.crash.matrix import (
    FaultKind,
    Survivor,
    check_a_fault_of_a_ready_writer,
    check_a_kill_at_a_point,
)
from tests.crash.scenario import POINTS_AFTER_LOCK, POINTS_AFTER_THE_DECISION, Predecessor
from tests.support.databases import Database, unique

OF_A_READY_WRITER = [*POINTS_AFTER_LOCK, *POINTS_AFTER_THE_DECISION]


@pytest.fixture
def scenario(store: Database, emulator: Emulator) -> Iterator[DjangoScenario]:
    made = DjangoScenario(store, emulator, transactional_id=f"{unique('django')}-0")
    yield made
    made.close()


@pytest.mark.parametrize("by_command", [False, True], ids=["next process", "command"])
@pytest.mark.parametrize("predecessor", Predecessor)
@pytest.mark.parametrize("point", PausePoint)
def test_a_kill_at_a_point(
    scenario: DjangoScenario, point: PausePoint, predecessor: Predecessor, by_command: bool
) -> None:
    scenario.by_command = by_command
    check_a_kill_at_a_point(scenario, point, predecessor, "--django")


@pytest.mark.parametrize("by_command", [False, True], ids=["next process", "command"])
@pytest.mark.parametrize("point", OF_A_READY_WRITER)
def test_a_kill_at_a_point_of_a_process_that_has_written_before(
    scenario: DjangoScenario, point: PausePoint, by_command: bool
) -> None:
    scenario.by_command = by_command
    check_a_kill_at_a_point(scenario, point, Predecessor.COMMITTED, "--django", "--ready")


@pytest.mark.parametrize("survivor", Survivor)
@pytest.mark.parametrize("fault", FaultKind)
@pytest.mark.parametrize("point", OF_A_READY_WRITER)
def test_a_fault_at_a_point_of_a_process_that_has_written_before(
    scenario: DjangoScenario, point: PausePoint, fault: FaultKind, survivor: Survivor
) -> None:
    check_a_fault_of_a_ready_writer(scenario, point, fault, survivor)
