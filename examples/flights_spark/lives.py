"""One application after the other, each until it dies as planned, the last one until everything is written."""

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
_GLANCE_S: Final = 0.05
_STARE_S: Final = 0.0005
"""Between two looks of who waits for a decision, which Kafka follows within milliseconds."""


def run_lives(
    job: Job,
    plan: Sequence[Life],
    *,
    watch: StoreWatch,
    logs: Path,
    seconds: Callable[[], float],
    on_change: Callable[[Tally], None],
) -> Tally:
    """Write everything through the deaths of `plan`; `seconds` tells how long the run has been going on.

    A life that has written everything before its death is the last one. Raises WorkerFailedError for an application
    that ends in any other way than these two, and where one takes too long.
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
    """True when its moment has come; False when the application has ended well before that."""
    started_s = time.monotonic()
    lives_on = _Vigil(application, tally, started_s + _LONGEST_LIFE_S)
    if kill is None:
        return lives_on.until(lambda: False, _GLANCE_S)
    if kill.moment is not Moment.STARTING:
        before = watch.newest_work()
        if not lives_on.until(lambda: watch.newest_work() != before, _GLANCE_S):
            return False
        started_s = time.monotonic()
    if not lives_on.until(lambda: time.monotonic() >= started_s + kill.after_s, _GLANCE_S):
        return False
    return kill.moment is not Moment.DECIDED or lives_on.until(watch.is_in_doubt, _STARE_S)


class _Vigil:
    """Waits beside an application."""

    def __init__(self, application: Application, tally: Tally, deadline_s: float) -> None:
        self._application = application
        self._tally = tally
        self._deadline_s = deadline_s

    def until(self, condition: Callable[[], bool], pause_s: float) -> bool:
        """True when the condition holds; False when the application has ended well before that."""
        while not condition():
            status = self._application.status()
            if status == 0:
                return False
            if status is not None:
                raise self._failure(f"ended with status {status}")
            if time.monotonic() > self._deadline_s:
                raise self._failure(f"was not done within {_LONGEST_LIFE_S:g} s")
            time.sleep(pause_s)
        return True

    def _failure(self, what: str) -> WorkerFailedError:
        return WorkerFailedError(
            f"life {self._tally.lives} of the application {what}; the end of its log:\n"
            f"{self._application.last_words(_LOG_TAIL_LINES)}"
        )
