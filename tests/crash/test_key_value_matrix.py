"""Each pause point x each fault x each key-value store x each predecessor x each survivor."""

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
from tests.support.key_value_stores import KeyValueStore, ZooKeeperStore, in_directory
from tests.support.servers.zookeeper import ZooKeeperServer

each_case = pytest.mark.parametrize(("point", "predecessor"), cases_with_predecessors())
each_survivor = pytest.mark.parametrize("survivor", Survivor)


@pytest.fixture(params=["rocksdb", "zookeeper"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueStore]:
    made: KeyValueStore = (
        in_directory(tmp_path)
        if request.param == "rocksdb"
        else ZooKeeperStore.on(request.getfixturevalue("zookeeper_server"))
    )
    yield made
    made.close()


@each_survivor
@each_case
def test_an_exception_at_a_point(
    store: KeyValueStore, emulator: Emulator, point: PausePoint, predecessor: Predecessor, survivor: Survivor
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


@pytest.mark.parametrize("store", ["rocksdb"], indirect=True)  # to the broker they are all the same
@pytest.mark.parametrize("fault", ["cut", "answer lost"])
@each_case
def test_a_broker_that_is_lost_at_a_point(
    store: KeyValueStore, emulator: Emulator, point: PausePoint, predecessor: Predecessor, fault: str
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


@pytest.mark.parametrize("fault", ["cut", "answer lost"])
@each_case
def test_a_zookeeper_that_is_lost_at_a_point(
    zookeeper_server: ZooKeeperServer, emulator: Emulator, point: PausePoint, predecessor: Predecessor, fault: str
) -> None:
    """Whether the write takes effect depends on when the client notices; both sides agree with its result."""
    store = ZooKeeperStore.on(zookeeper_server)
    scenario = KeyValueScenario(store, emulator)
    scenario.leave_behind(predecessor)
    with scenario.writer(AtPoint(point, store.cut if fault == "cut" else store.lose_answer)) as writer:
        seen = scenario.write(writer, 1)
        assert seen.took_effect is not None
        assert seen.took_effect or point not in POINTS_AFTER_THE_DECISION
        store.come_back()
        go_on(scenario, Survivor.SAME_WRITER, writer)
    store.close()


@each_case
def test_a_kill_at_a_point(
    store: KeyValueStore,
    emulator: Emulator,
    point: PausePoint,
    predecessor: Predecessor,
    request: pytest.FixtureRequest,
) -> None:
    scenario = KeyValueScenario(store, emulator)
    scenario.leave_behind(predecessor)
    kind = "zookeeper" if isinstance(store, ZooKeeperStore) else "rocksdb"
    store.let_go()
    run_until_killed(
        key_value_worker.main,
        *(kind, store.address, emulator.bootstrap_servers, scenario.transactional_id, scenario.topic, point),
    )
    store.take_back()
    if point in POINTS_AFTER_THE_DECISION:
        scenario.expected += event_texts("1")
    if isinstance(store, ZooKeeperStore) and store.direct.exists(
        f"{store.state_path}/{scenario.transactional_id}/lock"
    ):
        store.break_the_lease(scenario.transactional_id)  # its session lives on for some seconds
    with scenario.writer() as writer:
        writer.recover()
        scenario.assert_both_sides_agree()
        assert scenario.write(writer, 2).error is None
        scenario.assert_both_sides_agree()
