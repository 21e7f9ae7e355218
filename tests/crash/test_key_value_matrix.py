"""Each pause point x each fault on RocksDB x each predecessor x each survivor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker_emulator import DropReply, Fault
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash import key_value_worker
from tests.crash.key_value_scenario import KeyValueScenario
from tests.crash.killed import run_until_killed
from tests.crash.matrix import Survivor, cases_with_predecessors, go_on
from tests.crash.scenario import (
    POINTS_AFTER_THE_DECISION,
    AtPoint,
    InjectedError,
    Predecessor,
    event_texts,
)
from tests.support.key_value_stores import RocksDbStore, in_directory

each_case = pytest.mark.parametrize(("point", "predecessor"), cases_with_predecessors())
each_survivor = pytest.mark.parametrize("survivor", Survivor)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksDbStore]:
    made = in_directory(tmp_path)
    yield made
    made.close()


@each_survivor
@each_case
def test_an_exception_at_a_point(
    store: RocksDbStore, emulator: Emulator, point: PausePoint, predecessor: Predecessor, survivor: Survivor
) -> None:
    scenario = KeyValueScenario(store, emulator)
    scenario.leave_behind(predecessor)

    def throw() -> None:
        raise InjectedError

    with scenario.writer(AtPoint(point, throw)) as writer:
        seen = scenario.write(writer, 1)
        assert isinstance(seen.error, InjectedError)
        assert seen.took_effect is (point in POINTS_AFTER_THE_DECISION)
        go_on(scenario, survivor, writer)


@pytest.mark.parametrize("fault", ["cut", "answer lost"])
@each_case
def test_a_broker_that_is_lost_at_a_point(
    store: RocksDbStore, emulator: Emulator, point: PausePoint, predecessor: Predecessor, fault: str
) -> None:
    scenario = KeyValueScenario(store, emulator)
    scenario.leave_behind(predecessor)

    def strike() -> None:
        if fault == "cut":
            emulator.disconnect_clients()
        else:
            emulator.faults.add(Fault(action=DropReply()))

    with scenario.writer(AtPoint(point, strike)) as writer:
        assert scenario.write(writer, 1).error is None
        go_on(scenario, Survivor.SAME_WRITER, writer)


@each_case
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
