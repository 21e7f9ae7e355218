"""ZooKeeper without its lock node: a new lock takes the decision away from the earlier owner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import RowLockTimeoutError, StateRowError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.stores.zookeeper import add_versioned_set, node_name
from tests.crash.key_value_scenario import KeyValueScenario
from tests.crash.scenario import POINTS_AFTER_THE_DECISION, AtPoint, Predecessor
from tests.crash.sleeping import sleeping
from tests.support.key_value_stores import ZooKeeperStore
from tests.support.servers.zookeeper import ZooKeeperServer
from tests.support.threads import in_threads

POINTS_UNDER_THE_LOCK = [point for point in PausePoint if point not in POINTS_AFTER_THE_DECISION]


@pytest.fixture
def store(zookeeper_server: ZooKeeperServer) -> Iterator[ZooKeeperStore]:
    made = ZooKeeperStore.on(zookeeper_server)
    yield made
    made.close()


@pytest.fixture
def scenario(store: ZooKeeperStore, emulator: Emulator) -> KeyValueScenario:
    return KeyValueScenario(store, emulator)


@pytest.mark.parametrize("point", POINTS_UNDER_THE_LOCK)
def test_a_zombie_whose_lease_is_gone_changes_nothing(
    store: ZooKeeperStore, scenario: KeyValueScenario, point: PausePoint
) -> None:
    with sleeping(scenario, point) as older, scenario.writer() as newer:
        store.break_the_lease(scenario.transactional_id)
        newer.recover()
        assert scenario.write(newer, 2).error is None
        seen = older.wake()
        third = scenario.write(newer, 3)
    assert seen.took_effect is False
    if point in (PausePoint.AFTER_STATE_WRITE, PausePoint.BEFORE_DATABASE_COMMIT):
        assert isinstance(seen.error, StateRowError)  # the multi was answered: nothing is unknown
    assert third.error is None  # it found its lock gone before its first request to Kafka
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("point", POINTS_AFTER_THE_DECISION)
def test_a_zombie_that_had_decided_is_completed_by_the_newer_one(
    store: ZooKeeperStore, scenario: KeyValueScenario, point: PausePoint
) -> None:
    with sleeping(scenario, point) as older, scenario.writer() as newer:
        store.break_the_lease(scenario.transactional_id)
        completed = point is PausePoint.AFTER_DATABASE_COMMIT
        assert [found.outcome for found in newer.recover()] == [Outcome.COMMITTED] * completed
        assert older.wake().error is None
        assert scenario.write(newer, 2).error is None
    scenario.assert_both_sides_agree()


def test_a_sleep_between_lock_and_initialisation_outdates_the_row_that_was_read(
    store: ZooKeeperStore, scenario: KeyValueScenario
) -> None:
    """Meanwhile another one wrote and died between its two commits."""
    with sleeping(scenario, PausePoint.AFTER_LOCK) as older:
        store.break_the_lease(scenario.transactional_id)
        scenario.leave_behind(Predecessor.COMMITTED)
        assert older.wake().took_effect is False
    with scenario.writer() as newer:
        assert [found.outcome for found in newer.recover()] == [Outcome.COMMITTED]
    scenario.assert_both_sides_agree()


def test_a_living_owner_is_waited_for(scenario: KeyValueScenario) -> None:
    with sleeping(scenario, PausePoint.AFTER_PREPARE) as older, scenario.writer(lock_timeout_ms=50) as newer:
        with pytest.raises(RowLockTimeoutError, match="stayed locked for 50 ms"):
            newer.recover()
        assert older.wake().error is None
        assert newer.recover() == []
        assert scenario.write(newer, 2).error is None
    scenario.assert_both_sides_agree()


def test_several_recover_at_once(scenario: KeyValueScenario) -> None:
    scenario.leave_behind(Predecessor.COMMITTED)
    found = in_threads(*(scenario.writer().recover for _ in range(4)))
    assert [each.outcome for of_one in found for each in of_one] == [Outcome.COMMITTED]
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_is_found_out(store: ZooKeeperStore, scenario: KeyValueScenario, applied: bool) -> None:
    lose = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lambda: store.lose_multi(applied=applied))
    with scenario.writer(lose) as writer:
        seen = scenario.write(writer, 1)
        assert seen.took_effect is applied
        assert (seen.error is None) is applied
        store.come_back()
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


def test_what_zookeeper_refuses_changes_neither_side(store: ZooKeeperStore, scenario: KeyValueScenario) -> None:
    with scenario.writer() as writer:
        assert scenario.write(writer, 1).error is None
        assert type(scenario.write(writer, 1).error).__name__ == "NodeExistsError"
        scenario.expected = scenario.expected[:2]
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


def test_names_of_nodes() -> None:
    assert node_name("a/b.c d") == "a%2Fb%2Ec%20d"
    assert node_name("..") == "%2E%2E"


def test_no_version_is_the_one_that_compares_nothing() -> None:
    class Multi:
        sets: list[tuple[str, bytes, int]] = []  # noqa: RUF012

        def set_data(self, *arguments: object) -> None:
            self.sets.append(arguments)  # type: ignore[arg-type]

    multi = Multi()
    assert add_versioned_set(multi, "/n", b"s", 7) == 8
    assert add_versioned_set(multi, "/n", b"s", -2) == 0
    assert multi.sets == [("/n", b"s", 7), ("/n", b"s", -2), ("/n", b"s", -1)]
