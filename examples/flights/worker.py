"""The process that writes and is killed: `python -m examples.flights.worker JOB`, where JOB is a `Job` as JSON.

It reports on standard output, one JSON object per line.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from dualwrite.errors import ConfigError, InvalidRecordError, KafkaError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from examples.flights.errors import RefusedError
from examples.flights.events import Event, read_event_file
from examples.flights.job import REFUSED_STATUS, Job, Method, Report
from examples.flights.kill_plan import TAKEOVER_POINTS, Kill
from examples.flights.table import next_number


class WritingMethod(Protocol):
    """A way to write groups of events to a table and to a topic."""

    def recover(self) -> Outcome: ...
    def write(self, events: list[Event]) -> None: ...
    def close(self) -> None: ...


class Executioner:
    """A pause hook that kills this process at a given pause point, without any clean-up."""

    def __init__(self, kill: Kill | None) -> None:
        self._kill = kill
        self._group: list[Event] = []
        self._records_sent = 0

    def enter(self, group: list[Event]) -> None:
        """Note that the next transaction writes `group`."""
        self._group = group
        self._records_sent = 0

    def __call__(self, point: PausePoint) -> None:
        if point is PausePoint.AFTER_SEND:
            self._records_sent += 1
        if self._kill is not None and self._is_at(self._kill, point):
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_at(self, kill: Kill, point: PausePoint) -> bool:
        if point is not kill.point:
            return False
        if point in TAKEOVER_POINTS:
            return True
        if not self._group or self._group[0].number < kill.from_number:
            return False
        # The last group may be shorter than the others.
        return point is not PausePoint.AFTER_SEND or self._records_sent == min(kill.record + 1, len(self._group))


def main(job: Job) -> int:
    """Run the job; print errors of input or broker in one line, and let others end in a traceback."""
    try:
        run(job)
    except (ConfigError, InvalidRecordError, KafkaError, RefusedError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return REFUSED_STATUS
    return 0


def run(job: Job) -> None:
    """Recover, read from the table where to continue, and write the remaining events."""
    engine = sa.create_engine(job.database_url)
    executioner = Executioner(job.kill)
    method = _make_method(engine, job, executioner)
    recovered = method.recover()
    start = next_number(engine)
    _report(Report(start, recovered))
    for group in read_event_file(Path(job.event_file), start=start, group_size=job.group_size):
        executioner.enter(group)
        method.write(group)
        _report(Report(group[-1].number + 1))
    method.close()


def _make_method(engine: sa.Engine, job: Job, pause: PauseHook) -> WritingMethod:
    """Create the method, importing only its own modules, because a worker is started dozens of times."""
    if job.method is Method.NAIVE:
        from examples.flights.naive_write import NaiveMethod

        return NaiveMethod(engine, job, pause)
    from examples.flights.dual_write import DualWriteMethod

    return DualWriteMethod(engine, job, pause)


def _report(report: Report) -> None:
    os.write(sys.stdout.fileno(), report.to_json().encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(Job.from_json(sys.argv[1])))
