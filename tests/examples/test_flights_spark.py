"""The parts of the Spark demo that need no Spark."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from examples.flights.comparison import TopicRecord
from examples.flights.errors import WorkerFailedError
from examples.flights.events import read_events
from examples.flights_spark import application as applications
from examples.flights_spark.job import SINK_ID, Job
from examples.flights_spark.kill_plan import Kill, Life, Moment, plan_lives
from examples.flights_spark.lives import run_lives
from examples.flights_spark.store_watch import StoreWatch
from examples.flights_spark.tables import METADATA, FlightRow, Total
from examples.flights_spark.tally import Tally
from examples.flights_spark.verdict import judge
from spark_sink.store.tables import StoreTables
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase

EVENTS = list(read_events(None, key=None, limit=10))
ROWS = [FlightRow(event.number, event.key, event.value) for event in EVENTS]
RECORDS = [TopicRecord(0, event.number, event.key, event.value) for event in EVENTS]


@pytest.fixture
def engine(postgres: PostgresDatabase) -> sa.Engine:
    METADATA.create_all(postgres.engine)
    StoreTables(None).create(postgres.engine)
    return postgres.engine


# ---- the plan -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_successive_lives_differ_in_tasks_and_the_last_is_not_killed(seed: int) -> None:
    plan = plan_lives(seed, 9)
    assert [life.kill is None for life in plan] == [False] * 9 + [True]
    assert all(one.tasks != next_one.tasks for one, next_one in itertools.pairwise(plan))
    moments = [life.kill.moment for life in plan if life.kill is not None]
    assert {moment: moments.count(moment) for moment in Moment} == {
        Moment.STARTING: 1,
        Moment.RUNNING: 5,
        Moment.DECIDED: 3,
    }
    assert plan == plan_lives(seed, 9)


# ---- the verdict --------------------------------------------------------------------------------------------


def totals() -> dict[str, Total]:
    found: dict[str, Total] = {}
    for event in EVENTS:
        flight = json.loads(event.value)["data"]
        before = found.get(flight["carrier"], Total(0, 0))
        found[flight["carrier"]] = Total(before.flights + 1, before.distance + flight["distance"])
    return found


def test_equal_sides_have_no_divergence() -> None:
    verdict = judge(EVENTS, ROWS, RECORDS, totals())
    assert (verdict.divergences, verdict.rows, verdict.records, verdict.examples(3)) == (0, 10, 10, [])


def test_each_kind_of_divergence_is_found() -> None:
    verdict = judge(
        EVENTS,
        [*ROWS[:-2], ROWS[0], FlightRow(8, "N0", ROWS[8].event)],
        [*RECORDS[:8], TopicRecord(0, 10, RECORDS[1].key, RECORDS[1].value)],
        totals() | {"UA": Total(0, 0)},
    )
    assert {kind: len(found) for kind, found in verdict.kinds.items() if found} == {
        "in neither": 1,
        "rows without a record": 1,
        "records twice": 1,
        "rows twice": 1,
        "rows that differ from the input": 1,
        "wrong totals": 1,
    }


# ---- the lives ----------------------------------------------------------------------------------------------

Start = Callable[[str], None]


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Run a script in place of the Spark application."""

    def use(script: str) -> None:
        real = subprocess.Popen

        def start(command: list[str], **options: object) -> object:
            return real([sys.executable, "-c", script, *command[3:]], **options)  # type: ignore[call-overload]

        monkeypatch.setattr(subprocess, "Popen", start)

    return use


def job(engine: sa.Engine) -> Job:
    return Job(engine.url.render_as_string(hide_password=False), "127.0.0.1:1", "input", "checkpoints", 0)


def run(engine: sa.Engine, plan: list[Life], tmp_path: Path) -> Tally:
    watch = StoreWatch(engine)
    try:
        return run_lives(
            job(engine), plan, watch=watch, logs=tmp_path, seconds=lambda: 1.0, on_change=lambda tally: None
        )
    finally:
        watch.close()


DECIDES = f"""
import json, sys, time
import sqlalchemy as sa
job = json.loads(sys.argv[1])
with sa.create_engine(job["database_url"]).begin() as connection:
    connection.execute(sa.text(
        "INSERT INTO dw_attempt (attempt_id, sink_id, query_id, batch_id, generation, partition_id, task_attempt_id,"
        " host, txn_id, status) VALUES (:id, '{SINK_ID}', 'q', 1, 1, 0, 0, 'here', 't', 'PREPARED')"),
        {{"id": job["tasks"]}})
    if job["tasks"] == 2:
        connection.execute(sa.text(
            "INSERT INTO dw_batch (sink_id, query_id, batch_id, status, generation, n_attempts, n_records)"
            " VALUES ('{SINK_ID}', 'q', 2, 'COMMIT', 1, 1, 1)"))
time.sleep(60)
"""


def test_an_application_is_killed_at_its_time(engine: sa.Engine, instead: Start, tmp_path: Path) -> None:
    instead(DECIDES)
    plan = [Life(1, Kill(Moment.RUNNING, 0.0)), Life(2, Kill(Moment.DECIDED, 0.0))]
    tally = run(engine, plan, tmp_path)
    assert (tally.lives, tally.tasks) == (2, [1, 2])
    assert tally.killed_in == {Moment.RUNNING: 1, Moment.DECIDED: 1}
    assert (tally.rolled_forward, tally.rolled_back) == (1, 2)  # no life here undoes the first one's transaction


def test_a_life_that_has_written_everything_is_the_last(engine: sa.Engine, instead: Start, tmp_path: Path) -> None:
    instead("")
    tally = run(engine, [Life(1, Kill(Moment.RUNNING, 0.0)), Life(2, None)], tmp_path)
    assert (tally.lives, tally.kills) == (1, 0)


def test_a_failing_application_is_reported_with_its_last_lines(
    engine: sa.Engine, instead: Start, tmp_path: Path
) -> None:
    instead("raise SystemExit('no more disks')")
    with pytest.raises(WorkerFailedError, match=r"(?s)life 1 of the application ended with status 1.*no more disks"):
        run(engine, [Life(1, None)], tmp_path)


def test_a_kill_ends_the_processes_started_by_the_application(
    engine: sa.Engine, instead: Start, tmp_path: Path
) -> None:
    script = "import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    instead(f"{script}; print(c.pid, flush=True); time.sleep(60)")
    with applications.Application(job(engine), tmp_path / "log") as application:
        until(lambda: (tmp_path / "log").read_text().endswith("\n"))
        child = int((tmp_path / "log").read_text())
        application.kill()
    assert application.status() == -signal.SIGKILL
    until(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split(")")[1])
