"""A process that is killed on either side of the decision; all points are in `tests/crash/test_django_matrix.py`."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.django_scenario import DjangoScenario
from tests.crash.matrix import check_a_kill_at_a_point
from tests.crash.scenario import Predecessor
from tests.support.databases import Database, unique


@pytest.mark.parametrize(
    ("point", "by_command"),
    [
        (PausePoint.AFTER_PREPARE, True),
        (PausePoint.BEFORE_DATABASE_COMMIT, False),
        (PausePoint.AFTER_DATABASE_COMMIT, False),
        (PausePoint.AFTER_DATABASE_COMMIT, True),
    ],
)
def test_a_kill(store: Database, emulator: Emulator, point: PausePoint, by_command: bool) -> None:
    scenario = DjangoScenario(store, emulator, transactional_id=f"{unique('django')}-0", by_command=by_command)
    check_a_kill_at_a_point(scenario, point, Predecessor.COMMITTED, "--django")
    scenario.close()
