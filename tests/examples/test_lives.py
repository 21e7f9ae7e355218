"""Workers that do not end as planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from examples.flights.errors import RefusedError, WorkerFailedError
from examples.flights.events import Event, write_event_file
from examples.flights.job import Job, Method
from examples.flights.kill_plan import Kill
from examples.flights.lives import run_lives
from examples.flights.table import Base
from examples.flights.tally import Tally


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Nothing to write, so that no broker is needed."""
    write_event_file(iter([Event(0, "k", "{}")]), tmp_path / "events.jsonl")
    url = f"sqlite:///{tmp_path}/events.db"
    engine = sa.create_engine(url)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO flight_events VALUES (0, 'k', '{}')"))
    return Job(Method.NAIVE, url, "127.0.0.1:1", "events", "id", str(tmp_path / "events.jsonl"), 1, None)


def ignore(tally: Tally) -> None:
    pass


def test_a_worker_that_survives_its_kill_is_a_failure(job: Job, tmp_path: Path) -> None:
    with pytest.raises(WorkerFailedError, match="which was to die after-send from event 0 on, should have been killed"):
        run_lives(job, [Kill(PausePoint.AFTER_SEND, 0, 0)], logs=tmp_path, on_change=ignore)


def test_a_failing_worker_is_reported_with_its_last_lines(job: Job, tmp_path: Path) -> None:
    Path(job.event_file).unlink()
    with pytest.raises(WorkerFailedError, match=r"(?s)life 1 of the naive worker.*ended with 1.*FileNotFoundError"):
        run_lives(job, [], logs=tmp_path, on_change=ignore)


_TOO_LARGE = {Method.DUAL_WRITE: "more than max.request.size", Method.NAIVE: "Message size too large"}


@pytest.mark.parametrize("method", list(Method))
def test_a_refusal_by_kafka_is_reported_in_one_line(
    job: Job, tmp_path: Path, emulator: Emulator, method: Method
) -> None:
    emulator.create_topic("large")
    write_event_file(iter([Event(0, "k", "{}"), Event(1, "k", "x" * 2_000_000)]), Path(job.event_file))
    large = replace(job, method=method, bootstrap_servers=emulator.bootstrap_servers, topic="large")
    with pytest.raises(RefusedError) as raised:
        run_lives(large, [], logs=tmp_path, on_change=ignore)
    assert str(raised.value).startswith(f"the {method} cannot continue: ")
    assert _TOO_LARGE[method] in str(raised.value)
    assert "\n" not in str(raised.value)
