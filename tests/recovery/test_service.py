"""`RecoveryService` on both databases: resolved ids, ids that it leaves alone, and repetition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.admin import TransactionDescription
from dualwrite.broker_emulator import Error, Fault
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import ConfigError, IllegalStateError, StateRowError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.recovery.service import Action, RecoveryReport, RecoveryService
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase, create_state_table, kafka_transaction_state
from tests.crash.scenario import AtPoint, Predecessor, Scenario
from tests.recovery.world import left_open, service
from tests.support.databases import Database


@pytest.fixture
def scenario(database: Database, emulator: Emulator) -> Scenario:
    return Scenario(database, emulator)


EXPECTED = {Predecessor.COMMITTED: Action.COMMIT, Predecessor.ROLLED_BACK: Action.ABORT}


@pytest.mark.parametrize("predecessor", Predecessor)
def test_transactions_left_by_a_crash_are_planned_then_resolved_then_gone(
    scenario: Scenario, predecessor: Predecessor
) -> None:
    scenario.leave_behind(predecessor)
    before = scenario.emulator.transactions()
    with service(scenario) as recovery:
        planned = recovery.plan()
        assert scenario.emulator.transactions() == before
        done = recovery.recover()
        again = recovery.recover()
    with pytest.raises(IllegalStateError, match="closed"):
        recovery.plan()
    (plan,), (found,) = planned.found, done.found
    assert (plan.action, plan.changed, plan.is_left) == (EXPECTED[predecessor], False, True)
    assert (found.action, found.changed, found.is_left) == (EXPECTED[predecessor], True, False)
    assert found.topic_partitions == (f"{scenario.topic}-0",)
    assert (found.row == found.pair) is (predecessor is Predecessor.COMMITTED)
    assert (planned.is_clean, done.is_clean, again.is_clean) == (False, True, True)
    assert (again.found, again.settled) == ((), 1)
    scenario.assert_both_sides_agree()


def test_a_transaction_opened_and_never_prepared_is_aborted(scenario: Scenario) -> None:
    left_open(scenario.emulator, scenario.kafka_id, scenario.topic)
    blocking.run(SqlAlchemyDatabase(scenario.database.engine).ensure_row(scenario.transactional_id))
    with service(scenario) as recovery:
        (found,) = recovery.recover().found
    assert (found.action, found.changed, found.row) == (Action.ABORT, True, "")
    scenario.assert_both_sides_agree()


def test_a_living_owner_in_its_block_is_not_disturbed(scenario: Scenario) -> None:
    reports: list[RecoveryReport] = []

    def meanwhile() -> None:
        with service(scenario) as recovery:
            reports.append(recovery.recover())

    with scenario.writer(AtPoint(PausePoint.AFTER_PREPARE, meanwhile)) as writer:
        assert scenario.write(writer, 1).error is None
        assert scenario.write(writer, 2).error is None
    (found,) = reports[0].found
    assert (found.action, found.changed, reports[0].is_clean) == (Action.IN_USE, False, True)
    scenario.assert_both_sides_agree()


def test_an_idle_living_owner_is_not_fenced(scenario: Scenario) -> None:
    with scenario.writer() as writer, service(scenario) as recovery:
        assert scenario.write(writer, 1).error is None
        assert recovery.recover().found == ()
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


def test_naming_an_id_does_not_overrule_its_row(scenario: Scenario) -> None:
    scenario.leave_behind(Predecessor.COMMITTED)
    with service(scenario, force_terminate=[scenario.transactional_id]) as recovery:
        (found,) = recovery.recover().found
    assert (found.action, found.changed) == (Action.COMMIT, True)
    scenario.assert_both_sides_agree()


def test_a_prefix_selects_its_ids_only(database: Database, emulator: Emulator) -> None:
    ours = [Scenario(database, emulator, transactional_id=f"a_%{number}") for number in range(3)]
    other = Scenario(database, emulator, transactional_id="A_%9")
    between = Scenario(database, emulator, transactional_id="abc-1")
    ours[0].leave_behind(Predecessor.ROLLED_BACK)
    ours[1].leave_behind(Predecessor.ROLLED_BACK)
    other.leave_behind(Predecessor.ROLLED_BACK)
    between.leave_behind(Predecessor.ROLLED_BACK)
    left_open(emulator, ours[2].kafka_id, ours[2].topic)
    with service(ours[0], prefix="a_%", transactional_ids=[]) as recovery:
        report = recovery.recover()
    assert [(found.transactional_id, found.action) for found in report.found] == [
        ("a_%0", Action.ABORT),
        ("a_%1", Action.ABORT),
        ("a_%2", Action.NO_ROW),
    ]
    for untouched in (other, between):
        with pytest.raises(AssertionError):
            untouched.assert_nothing_open()


def test_two_at_once_resolve_everything_exactly_once(database: Database, emulator: Emulator) -> None:
    scenarios = [Scenario(database, emulator, transactional_id=f"many-{number}") for number in range(6)]
    for number, scenario in enumerate(scenarios):
        if number % 2:
            scenario.leave_behind(Predecessor.ROLLED_BACK)
        else:
            left_open(emulator, scenario.kafka_id, scenario.topic)
            blocking.run(SqlAlchemyDatabase(database.engine).ensure_row(scenario.transactional_id))
    start = threading.Barrier(2)

    def recover(_: int) -> RecoveryReport:
        engine = sa.create_engine(database.url, poolclass=sa.NullPool)
        with RecoveryService(
            engine, bootstrap_servers=emulator.bootstrap_servers, prefix="many-", min_age_ms=0
        ) as recovery:
            start.wait(timeout=30)
            return recovery.recover()

    with ThreadPoolExecutor(2) as threads:
        reports = list(threads.map(recover, range(2)))
    resolved = [found.transactional_id for report in reports for found in report.found if found.changed]
    with service(scenarios[0], prefix="many-") as recovery:
        resolved += [found.transactional_id for found in recovery.recover().found]
    assert sorted(resolved) == [scenario.transactional_id for scenario in scenarios]
    assert not any(found.error for report in reports for found in report.found)
    for scenario in scenarios:
        scenario.assert_nothing_open()


def test_an_invalid_row_is_reported_and_does_not_stop_the_rest(database: Database, emulator: Emulator) -> None:
    broken = Scenario(database, emulator, transactional_id="some-1")
    fine = Scenario(database, emulator, transactional_id="some-2")
    fine.leave_behind(Predecessor.COMMITTED)
    with database.engine.begin() as connection:
        connection.execute(
            kafka_transaction_state.insert().values(transactional_id="some-1", prepared_transaction_state="what?")
        )
    with service(broken, prefix="some-") as recovery:
        report = recovery.recover()
    assert [(found.action, found.changed) for found in report.found] == [(Action.FAILED, False), (Action.COMMIT, True)]
    assert "'what?' is not a prepared transaction state" in str(report.found[0].error)
    assert report.left == report.found[:1]
    fine.assert_both_sides_agree()


def test_a_database_without_the_table_decides_nothing(database: Database, emulator: Emulator) -> None:
    with RecoveryService(database.engine, bootstrap_servers=emulator.bootstrap_servers, prefix="") as recovery:
        with pytest.raises(StateRowError, match="kafka_transaction_state does not exist"):
            recovery.recover()


@pytest.mark.parametrize(("api", "recovered"), [("ListTransactions", 1), ("DescribeTransactions", 0)])
def test_an_id_that_kafka_does_not_describe_is_unseen_and_left(scenario: Scenario, api: str, recovered: int) -> None:
    scenario.leave_behind(Predecessor.COMMITTED)
    ids = [scenario.transactional_id, "another"]
    with service(scenario, prefix=scenario.transactional_id, transactional_ids=ids) as recovery:
        fault = scenario.emulator.faults.add(Fault(api=api, count=None, action=Error("UNKNOWN_SERVER_ERROR")))
        report = recovery.recover()
        fault.remove()
        later = recovery.recover()
    assert (len(report.found), len(later.found)) == (recovered, 1 - recovered)
    assert all(f"{api} for " in each for each in report.unseen)
    assert (bool(report.unseen), report.is_clean) == (True, False)
    scenario.assert_both_sides_agree()


def test_rounds_continue_until_stopped(scenario: Scenario) -> None:
    scenario.leave_behind(Predecessor.COMMITTED)
    stopped = threading.Event()
    heard: list[RecoveryReport] = []
    failed: list[Exception] = []

    def hear(report: RecoveryReport) -> None:
        heard.append(report)
        kafka_transaction_state.drop(scenario.database.engine)

    def fail(error: Exception) -> None:
        failed.append(error)
        stopped.set()

    with service(scenario) as recovery:
        recovery.run(0.001, stopped=stopped, heard=hear, failed=fail)
    assert [found.action for found in heard[0].found] == [Action.COMMIT]
    assert [type(error) for error in failed] == [StateRowError]


def test_a_stopped_round_ends_early(emulator: Emulator, tmp_path: Path) -> None:
    for each in ("orphan-1", "orphan-2", "orphan-3"):
        left_open(emulator, each, "orders")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'db'}")
    create_state_table(engine)
    stopped = threading.Event()
    heard: list[RecoveryReport] = []

    def clock() -> float:  # asked at the first id
        stopped.set()
        return time.time()

    with RecoveryService(
        engine, bootstrap_servers=emulator.bootstrap_servers, prefix="orphan-", min_age_ms=0, clock=clock
    ) as recovery:
        recovery.run(60, stopped=stopped, heard=heard.append, failed=lambda error: pytest.fail(str(error)))
    (report,) = heard
    assert [found.transactional_id for found in report.found] == ["orphan-1"]
    assert report.unseen == ("2 ids, because recovery was stopped",)
    assert report.settled == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"transactional_ids": []}, "pass prefix"),
        ({"transactional_ids": "orders-1"}, "takes a collection of transactional ids"),
        ({"min_age_ms": -1}, "min_age_ms must be at least 0"),
        ({"default_api_timeout_ms": 1}, "use timeout_ms"),
        ({"linger_mss": 1}, "linger_ms"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Any, settings: dict[str, Any], said: str) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'db'}")
    make: Callable[..., RecoveryService] = RecoveryService
    with pytest.raises(ConfigError, match=said):
        make(engine, bootstrap_servers="127.0.0.1:1", **{"transactional_ids": ["a"]} | settings)


def test_an_unknown_state_is_reported_and_left(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario.leave_behind(Predecessor.COMMITTED)
    with service(scenario) as recovery:
        describe = recovery._admin.describe_transactions

        def strange(*arguments: Any, **keywords: Any) -> dict[str, TransactionDescription | None]:
            found = describe(*arguments, **keywords)
            return {each: replace(known, state="PrepareEpochFence") for each, known in found.items() if known}

        monkeypatch.setattr(recovery._admin, "describe_transactions", strange)
        (left,) = recovery.recover().left
        assert (left.action, left.changed, left.state) == (Action.FAILED, False, "PrepareEpochFence")
        monkeypatch.undo()
        assert recovery.recover().is_clean
    scenario.assert_both_sides_agree()
