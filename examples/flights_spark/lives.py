"""Run one application after the other: each is killed as planned, the last one writes the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from examples.flights.errors import WorkerFailedError
from examples.flights_spark.application import Application
from examples.flights_spark.job import Job
from examples.flights_spark.kill_plan import Kill, Life, Moment
from examples.flights_spark.store_watch import StoreWatch
from examples.flights_spark.tally import Tally

_LONGEST_LIFE_S: Final = 300.0
_LOG_TAIL_LINES: Final = 40
_POLL_S: Final = 0.05
_DECISION_POLL_S: Final = 0.0005
"""Poll interval while waiting for a decision, after which Kafka's commit follows within milliseconds."""


def run_lives(
    job: Job,
    plan: Sequence[Life],
    *,
    watch: StoreWatch,
    logs: Path,
    seconds: Callable[[], float],
    on_change: Callable[[Tally], None],
) -> Tally:
    """Write everything despite the kills of `plan`; `seconds` returns the time since the start of the run.

    A life that finishes before its kill is the last one. Raises WorkerFailedError if an application ends in any other
    way, or takes too long.
    """
    tally = Tally()
    for life in plan:
        tally.lives += 1
        tally.tasks.append(life.tasks)
        on_change(tally)
        with Application(replace(job, tasks=life.tasks), logs / f"life-{tally.lives}.log") as application:
            if not _is_time_to_kill(application, life.kill, watch, tally):
                break
            application.kill()
        assert life.kill is not None
        tally.killed.append((seconds(), life.kill.moment))
        left = watch.left()
        tally.rolled_forward += left.decided
        tally.rolled_back += left.undecided
        on_change(tally)
    return tally


def _is_time_to_kill(application: Application, kill: Kill | None, watch: StoreWatch, tally: Tally) -> bool:
    """Wait until the kill is due and return True, or return False if the application finished before."""
    started_s = time.monotonic()
    waiting = _Waiting(application, tally, started_s + _LONGEST_LIFE_S)
    if kill is None:
        return waiting.until(lambda: False, _POLL_S)
    if kill.moment is not Moment.STARTING:
        before = watch.newest_work()
        if not waiting.until(lambda: watch.newest_work() != before, _POLL_S):
            return False
        started_s = time.monotonic()
    if not waiting.until(lambda: time.monotonic() >= started_s + kill.after_s, _POLL_S):
        return False
    return kill.moment is not Moment.DECIDED or waiting.until(watch.is_in_doubt, _DECISION_POLL_S)


class _Waiting:
    """Waits for conditions while an application runs."""

    def __init__(self, application: Application, tally: Tally, deadline_s: float) -> None:
        self._application = application
        self._tally = tally
        self._deadline_s = deadline_s

    def until(self, condition: Callable[[], bool], pause_s: float) -> bool:
        """Wait until the condition holds and return True, or return False if the application finished before."""
        while not condition():
            status = self._application.status()
            if status == 0:
                return False
            if status is not None:
                raise self._failure(f"ended with status {status}")
            if time.monotonic() > self._deadline_s:
                raise self._failure(f"did not finish within {_LONGEST_LIFE_S:g} s")
            time.sleep(pause_s)
        return True

    def _failure(self, what: str) -> WorkerFailedError:
        return WorkerFailedError(
            f"life {self._tally.lives} of the application {what}; the end of its log:\n"
            f"{self._application.log_tail(_LOG_TAIL_LINES)}"
        )
