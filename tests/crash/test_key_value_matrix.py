"""A process that writes to a RocksDB is killed at each pause point, behind each predecessor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash import key_value_worker
from tests.crash.key_value_scenario import KeyValueScenario
from tests.crash.killed import run_until_killed
from tests.crash.matrix import cases_with_predecessors
from tests.crash.scenario import (
    POINTS_AFTER_THE_DECISION,
    Predecessor,
    event_texts,
)
from tests.support.key_value_stores import RocksDbStore, in_directory


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksDbStore]:
    made = in_directory(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(("point", "predecessor"), cases_with_predecessors())
def test_a_kill_at_a_point(
    store: RocksDbStore,
    emulator: Emulator,
    point: PausePoint,
    predecessor: Predecessor,
) -> None:
    scenario = KeyValueScenario(store, emulator)
    scenario.leave_behind(predecessor)
    store.let_go()
    run_until_killed(
        key_value_worker.main,
        *(store.address, emulator.bootstrap_servers, scenario.transactional_id, scenario.topic, point),
    )
    store.take_back()
    if point in POINTS_AFTER_THE_DECISION:
        scenario.expected += event_texts("1")
    with scenario.writer() as writer:
        writer.recover()
        scenario.assert_both_sides_agree()
        assert scenario.write(writer, 2).error is None
        scenario.assert_both_sides_agree()
