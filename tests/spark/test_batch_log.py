"""The log line of a batch, the warning about many transactions, and the sinks that a worker keeps open."""

from __future__ import annotations

import datetime as dt
import logging
import subprocess
import sys
from collections import OrderedDict
from typing import Any

import pytest

from spark_sink import open_sinks
from spark_sink.driver import batch_log
from spark_sink.driver.batch_log import MANY_TRANSACTIONS, log_batch, log_completed
from spark_sink.driver.finisher import CommitSummary, Tally
from spark_sink.driver.phases import PhaseTimes
from spark_sink.errors import SinkError
from spark_sink.face import JobWriter
from spark_sink.handoff import BatchName, Plan, TaskOutcome, TaskResult
from spark_sink.open_sinks import sink_of
from spark_sink.options import SinkOptions, parse
from spark_sink.store.tables import BatchInDoubt, BatchRow, BatchStatus


def result(partition: int, outcome: TaskOutcome = TaskOutcome.PREPARED) -> TaskResult:
    return TaskResult(outcome, 1, "q", 7, partition, f"attempt-{partition}", 10, 100, staged_rows=9)


def summary(committed: int, aborted: int = 0) -> CommitSummary:
    return CommitSummary(True, 10 * committed, committed, 0, aborted, 0, PhaseTimes(0.0312, 2.5, 0.001, 0.0124))


@pytest.fixture(autouse=True)
def _lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "spark_sink")
    monkeypatch.setattr(batch_log, "_warned_of", set())


def test_a_batch_has_a_log_line_with_its_counts(caplog: pytest.LogCaptureFixture) -> None:
    log_batch("s", "q", 7, [result(0), result(1), result(2, TaskOutcome.EMPTY)], summary(2, aborted=1))
    assert caplog.messages == [
        "sink s, batch 7 of q: "
        "attempts=3 prepared=2 committed=2 repaired=0 aborted=1 records=20 bytes=200 table_rows=18 "
        "plan_ms=31 write_ms=2500 decide_ms=1 complete_ms=12"
    ]


def test_each_batch_completed_by_a_plan_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    done = BatchName("q", 7)
    tally = Tally(5, 1, 0, 0, {done: 3, BatchName("job:j", 0): 2}, {done: 1})
    decided_at = dt.datetime(2026, 11, 20)
    batches = [
        BatchInDoubt(BatchRow("s", *name, BatchStatus.COMMIT, 1, 4, 40, None, decided_at, None, None), age_ms)
        for name, age_ms in ((done, 61_000), (BatchName("job:j", 0), 90))
    ]
    log_completed(batches, tally, 0.0124, has_table=True)
    assert caplog.messages == [
        "sink s, batch 7 of q, which was decided 61.0 s before this plan: "
        "attempts=4 committed=3 repaired=1 records=40 table_rows=40 complete_ms=12",
        "sink s, batch 0 of job:j, which was decided 0.1 s before this plan: "
        "attempts=4 committed=2 repaired=0 records=40 table_rows=40 complete_ms=12",
    ]


def test_a_stream_of_many_transactions_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    many = [result(partition) for partition in range(MANY_TRANSACTIONS + 1)]
    log_batch("s", "q", 1, many[1:], summary(len(many) - 1))
    log_batch("s", "q", 2, many, summary(len(many)))
    log_batch("s", "q", 3, many, summary(len(many)))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "this batch had 51 Kafka transactions" in warnings[0]
    assert "df.coalesce(n)" in warnings[0]


@pytest.mark.parametrize("configuration", ["", "logging.basicConfig(level=logging.WARNING, stream=sys.stderr)"])
def test_a_worker_writes_each_line_of_its_log_once(configuration: str) -> None:
    code = f"""
import logging, sys
from spark_sink.driver.batch_log import log, configure_worker_logging
{configuration}
for _ in range(2):
    configure_worker_logging()
log.info("heard")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.count("heard") == 1


def test_the_committer_of_a_batch_job_writes_the_line() -> None:
    code = """
from types import SimpleNamespace
from spark_sink.face import JobWriter
from spark_sink.handoff import Plan
from spark_sink.options import parse
from spark_sink.driver.finisher import CommitSummary
from spark_sink.driver.phases import PhaseTimes
options = parse({"sinkId": "s", "kafka.bootstrap.servers": "h:1", "commitStore.url": "sqlite:////f", "topic": "t"})
sink = SimpleNamespace(commit=lambda *results, **about: CommitSummary(True, 0, 0, 0, 0, 0, PhaseTimes()))
JobWriter(options, lambda _: sink, Plan("s", 1), "job:1").commit([])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert "INFO spark_sink: sink s, batch 0 of job:1: attempts=0 " in done.stderr


class FakeSink:
    """A sink that can only be opened and closed."""

    opened: list[Any] = []  # noqa: RUF012 - the test's

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.closed = False
        self.opened.append(self)

    def close(self) -> None:
        self.closed = True


def open_fake(options: SinkOptions) -> Any:
    return FakeSink(options)


def test_a_job_whose_task_has_reported_nothing_is_not_committed() -> None:
    given = {"sinkId": "s", "kafka.bootstrap.servers": "b:1", "commitStore.url": "sqlite:////s", "topic": "t"}
    with pytest.raises(SinkError, match="a task of job:1 has reported nothing"):
        JobWriter(parse(given), open_fake, Plan("s", 1), "job:1").commit([None])


def test_a_worker_keeps_the_sinks_it_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_sinks, "_sinks", OrderedDict())

    def options(sink_id: str, job: str = "j") -> SinkOptions:
        given = {"sinkId": sink_id, "jobId": job, "kafka.bootstrap.servers": "b:1", "commitStore.url": "sqlite:////s"}
        return parse(given)

    first: Any = sink_of(options("s0"), open_fake)
    for number in range(1, 4):
        sink_of(options(f"s{number}"), open_fake)
    assert sink_of(options("s0", job="another"), open_fake) is first, "one sink for all jobs and queries"
    sink_of(options("s4"), open_fake)
    assert [sink.options.sink_id for sink in FakeSink.opened if sink.closed] == ["s1"]
    assert sink_of(options("s0"), open_fake) is first
