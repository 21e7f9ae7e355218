"""The metrics and spans of dual writes, read from OpenTelemetry's in-memory exporters."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Error, Fault
from dualwrite.delivery import Outbox
from dualwrite.errors import OutcomeUnknown, PoolTimeoutError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.leases import outbox_id_of
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.pool.coordinator import PooledBlock
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.crash.scenario import AtPoint, InjectedError, Predecessor, Scenario
from tests.recipes.away import kafka_away
from tests.recipes.heard import Heard
from tests.recipes.pools import make_pool, prefix_of, put, write, written
from tests.support.conditions import until
from tests.support.topics import read_topic


def test_a_dual_write_is_measured_step_by_step(heard: Heard, scenario: Scenario) -> None:
    def slow(point: PausePoint) -> None:
        heard.now_s += {
            PausePoint.AFTER_BEGIN: 8,  # measured, as the sending follows
            PausePoint.BEFORE_DATABASE_COMMIT: 0.5,
            PausePoint.AFTER_DATABASE_COMMIT: 0.25,
        }.get(point, 0)

    with scenario.writer(slow) as writer:
        scenario.write(writer, 1)
    sums = [
        heard.points(name)[0].sum
        for name in (
            "dualwrite.prepare.duration",
            "dualwrite.database.commit.duration",
            "dualwrite.kafka.commit.duration",
        )
    ]
    assert sums == [8, 0.5, 0.25]
    (commits,) = heard.points("dualwrite.kafka.commit.duration")
    assert {0.001, 1.0} < set(commits.explicit_bounds), "from a quick commit to what the alerts call slow"
    assert heard.sums("dualwrite.decided") == {"committed": 1}
    assert heard.in_doubt == 0
    (span,) = heard.spans("dualwrite.commit")
    assert span.name == "dualwrite.commit"
    assert span.attributes["messaging.kafka.transactional_id"] == scenario.transactional_id
    assert span.attributes["dualwrite.prepared_state"] == str(scenario.row())
    assert (span.attributes["dualwrite.outcome"], span.attributes["dualwrite.state"]) == ("committed", "ready")
    assert [event.name for event in span.events] == [
        *("after-begin", "after-send", "after-send", "after-prepare", "after-state-write"),
        *("before-database-commit", "after-database-commit"),
    ]


def test_a_block_that_fails_before_its_decision(heard: Heard, scenario: Scenario) -> None:
    def fail() -> None:
        raise RuntimeError

    with scenario.writer(AtPoint(PausePoint.AFTER_PREPARE, fail)) as writer:
        scenario.write(writer, 1)
    assert heard.sums("dualwrite.decided") == {"rolled-back": 1}
    assert heard.count("dualwrite.prepare.duration") == 1
    assert heard.count("dualwrite.database.commit.duration") == 0
    assert heard.count("dualwrite.kafka.commit.duration") == 0
    assert [span.attributes["dualwrite.outcome"] for span in heard.spans("dualwrite.commit")] == ["rolled-back"]


@pytest.mark.parametrize(
    ("predecessor", "outcome"), [(Predecessor.COMMITTED, "committed"), (Predecessor.ROLLED_BACK, "rolled-back")]
)
def test_a_predecessors_transaction_is_counted_by_its_outcome(
    heard: Heard, scenario: Scenario, predecessor: Predecessor, outcome: str
) -> None:
    scenario.leave_behind(predecessor)
    with scenario.writer() as writer:
        writer.recover()
        writer.recover()
    assert heard.sums("dualwrite.recovered") == {outcome: 1}


def test_the_time_in_doubt_is_measured(heard: Heard, scenario: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dualwrite.recipes")
    with scenario.writer() as writer:
        scenario.write(writer, 1)
        scenario.emulator.faults.add(Fault(api="EndTxn", action=Error("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")))
        scenario.write(writer, 2)
        assert writer.state is SlotState.IN_DOUBT
        pair = str(writer.in_doubt)
        heard.now_s += 7
        assert heard.in_doubt == 1
        assert heard.ages_s == {scenario.transactional_id: 7}
        writer.recover()
    assert heard.in_doubt == 0
    assert heard.ages_s == {}
    assert heard.sums("dualwrite.recovered") == {"committed": 1}
    of_dual_writes = "dualwrite.recipes.core.coordinator"  # the first use of an engine tells of its database besides
    told = [record.getMessage() for record in caplog.records if record.name == of_dual_writes]
    assert len(told) == 2
    assert all(scenario.transactional_id in line and pair in line for line in told)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return all warnings but those about the database at the first use of an engine."""
    safety = "dualwrite.decisions.database_safety"
    return [record for record in caplog.records if record.levelno >= logging.WARNING and record.name != safety]


@pytest.mark.parametrize("kind", [Scenario, PsycopgScenario])
def test_a_dropped_connection_is_logged_with_the_transactional_id(
    scenario: Scenario, kind: type[Scenario], caplog: pytest.LogCaptureFixture
) -> None:
    scenario = kind(scenario.database, scenario.emulator)

    def fail_and_cut() -> None:
        scenario.database.cut()
        raise InjectedError

    with scenario.writer(AtPoint(PausePoint.AFTER_LOCK, fail_and_cut)) as writer:
        assert isinstance(scenario.write(writer, 1).error, InjectedError)
    (told,) = warnings_in(caplog)
    assert told.getMessage().startswith(
        f"transactional id {scenario.transactional_id}: rolling back the database failed ("
    )
    assert told.getMessage().endswith("dropping its connection; the database rolls back its open transaction")
    assert (told.exc_info, "\n" in told.getMessage(), "ResourceClosedError" in caplog.text) == (None, False, False)


@pytest.mark.usefixtures("asks_twice")
def test_a_commit_without_an_outcome_is_in_doubt_too(heard: Heard, scenario: Scenario) -> None:
    database = scenario.database

    def lose_it() -> None:
        database.lose_commit(applied=True)
        database.refuse_new_connections()

    with scenario.writer(AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lose_it)) as writer:
        assert isinstance(scenario.write(writer, 1).error, OutcomeUnknown)
        assert heard.in_doubt == 1
        assert heard.sums("dualwrite.database.retries")[""] >= 1
        database.come_back()
        writer.recover()
    assert heard.in_doubt == 0
    assert heard.sums("dualwrite.recovered") == {"committed": 1}


def test_a_writer_that_was_fenced(heard: Heard, scenario: Scenario) -> None:
    with scenario.writer() as writer, scenario.writer() as other:
        scenario.write(writer, 1)
        other.recover()
        scenario.write(writer, 2)  # the row is as this one left it, and the id is not its own any more
    assert heard.sums("dualwrite.fenced") == {"": 1}


def test_a_pool_reports_its_slots_and_blocks(heard: Heard, scenario: Scenario) -> None:
    holds, go = threading.Event(), threading.Event()

    def hold() -> None:
        heard.now_s += 3
        holds.set()
        assert go.wait(30)

    pause = AtPoint(PausePoint.AFTER_BEGIN, hold)
    with (
        make_pool(scenario, prefix="told", max_writers=1, pause=pause) as pool,
        make_pool(scenario, prefix="told", max_writers=1, acquire_timeout_ms=0) as other,
        ThreadPoolExecutor() as threads,
    ):
        holder = threads.submit(write, pool, scenario, 1)
        assert holds.wait(30)
        waiter = threads.submit(write, pool, scenario, 2)
        until(lambda: pool.status.waiting == 1)
        heard.now_s += 4
        write(other, scenario, 3)
        assert heard.slots == {("told", "in_use"): 1, ("told", "idle"): 1, ("told", "set_aside"): 0}
        assert [(point.value, point.attributes["prefix"]) for point in heard.points("dualwrite.pool.waiting")] == [
            (1, "told")
        ]
        go.set()
        holder.result()
        waiter.result()
        (waits,) = heard.points("dualwrite.pool.wait.duration")
        assert (waits.count, waits.sum, waits.attributes) == (3, 4, {"prefix": "told"})
        scenario.emulator.faults.add(Fault(api="EndTxn", action=Error(120), count=None))
        write(pool, scenario, 4)
        assert heard.slots == {("told", "in_use"): 0, ("told", "idle"): 1, ("told", "set_aside"): 1}
        scenario.emulator.faults.clear()
        until(lambda: not pool.status.set_aside)
    assert heard.slots == {}
    assert written(scenario) == {"1", "2", "3", "4"}


def test_a_garbage_collected_pool_is_not_observed(heard: Heard, scenario: Scenario) -> None:
    pool = make_pool(scenario, prefix="told", max_writers=1)
    write(pool, scenario, 1)
    assert heard.slots == {("told", "in_use"): 0, ("told", "idle"): 1, ("told", "set_aside"): 0}
    del pool
    until(lambda: gc.collect() >= 0 and heard.slots == {})  # again: a background at work holds its pool


def test_a_block_that_timed_out_waiting_is_counted(heard: Heard, scenario: Scenario) -> None:
    with make_pool(scenario, prefix="told", max_writers=1, acquire_timeout_ms=0) as pool:
        blocking.run(PooledBlock(pool.pool).take_slot())
        with pytest.raises(PoolTimeoutError):
            write(pool, scenario, 1)
        (told,) = heard.points("dualwrite.pool.timeouts")
        assert (told.value, told.attributes) == (1, {"prefix": "told"})
        (slot,) = pool.pool.registry.all_slots()
        pool.pool.maintenance.put_back(slot)


def test_without_opentelemetry_nothing_is_measured_and_nothing_fails() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from dualwrite.recipes.core.telemetry import Telemetry, telemetry_of\n"
        "from dualwrite.recipes.core.metrics import Counted, count\n"
        "assert type(telemetry_of('x')) is Telemetry\n"
        "count(Counted.CONSUMED, outcome='written')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_stored_block_that_kafka_refuses_is_shown_until_it_is_published(heard: Heard, scenario: Scenario) -> None:
    scenario.emulator.set_config({"max.message.bytes": "10"}, topic=scenario.topic)
    with make_pool(scenario, delivery=Outbox()) as pool:
        write(pool, scenario, 1)
        until(lambda: bool(pool.status.refused))
        (point,) = heard.points("dualwrite.stored.refused")
        shown = (point.attributes["messaging.kafka.transactional_id"], point.value)
        assert shown == (outbox_id_of(prefix_of(scenario)), 1)
        scenario.emulator.set_config({"max.message.bytes": None}, topic=scenario.topic)
        pool.recover()
        assert heard.points("dualwrite.stored.refused") == []


# ---- outboxes -------------------------------------------------------------------------------------------------------


def ages_s(heard: Heard) -> dict[str, float]:
    points = heard.points("dualwrite.stored.age")
    return {point.attributes["messaging.kafka.transactional_id"]: point.value for point in points}


def test_added_and_published_blocks_are_counted(heard: Heard, scenario: Scenario) -> None:
    with make_pool(scenario, delivery=Outbox()) as pool:
        for number in (1, 2):
            write(pool, scenario, number)
        with pytest.raises(ZeroDivisionError), pool.transaction() as tx:
            put(tx, scenario, 3)
            raise ZeroDivisionError
        until(lambda: heard.sums("dualwrite.published") == {"": 2})
        assert heard.sums("dualwrite.stored") == {"": 2}
        until(lambda: ages_s(heard) == {})
    assert len(read_topic(scenario.emulator.bootstrap_servers, scenario.topic)) == 2


def test_a_process_that_does_not_publish_shows_the_backlog_until_another_has_published_it(
    heard: Heard, scenario: Scenario
) -> None:
    outbox = outbox_id_of(prefix_of(scenario))
    with make_pool(scenario, delivery=Outbox(publishes=False)) as pool:
        write(pool, scenario, 1)
        assert ages_s(heard).keys() == {outbox}
        an_hour_ago = sa.text("UPDATE kafka_transaction_outbox SET stored_at_ms = stored_at_ms - 3600000")
        with scenario.database.aside.begin() as connection:
            connection.execute(an_hour_ago)
        until(lambda: 3600 <= ages_s(heard).get(outbox, 0) < 3700)
        with make_pool(scenario, delivery=Outbox(max_stored_age_ms=10**9)) as publisher:
            publisher.recover()
        until(lambda: ages_s(heard) == {})


def test_waiting_blocks_are_shown_by_the_process_that_publishes(heard: Heard, scenario: Scenario) -> None:
    with make_pool(scenario, delivery=Outbox()) as pool:
        write(pool, scenario, 1)
        until(lambda: heard.sums("dualwrite.published") == {"": 1})
        with kafka_away(scenario.emulator):
            write(pool, scenario, 2)
            until(lambda: pool.status.outbox_blocks == 1)
            assert ages_s(heard).keys() == {outbox_id_of(prefix_of(scenario))}
        until(lambda: heard.sums("dualwrite.published") == {"": 2})
        until(lambda: ages_s(heard) == {})
