"""Run one worker after the other: each is killed where the plan says, the last one writes the rest."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from examples.flights.errors import DemoError, RefusedError, WorkerFailedError
from examples.flights.job import REFUSED_STATUS, Job, Report
from examples.flights.kill_plan import Kill
from examples.flights.tally import Tally

_SILENCE_LIMIT_S = 90.0  # longer than a producer waits for a broker (max.block.ms)
_MAX_FAILURES_IN_A_ROW = 5
_LOG_TAIL_LINES = 15
_CHUNK_BYTES = 65536


def run_lives(
    job: Job,
    plan: Sequence[Kill],
    *,
    logs: Path,
    on_change: Callable[[Tally], None],
    keep_going: bool = False,
) -> Tally:
    """Write all events of `job` despite every kill of `plan`. Raises WorkerFailedError or RefusedError.

    With `keep_going`, a worker that fails by itself is restarted, up to a few times in a row, instead of ending the
    run.
    """
    tally = Tally()
    for kill in [*plan, None]:
        failures = 0
        while error := _run_life(replace(job, kill=kill), tally, logs, on_change):
            failures += 1
            tally.failed()
            if not keep_going or failures == _MAX_FAILURES_IN_A_ROW:
                raise error
        if kill is not None:
            tally.killed(kill.point)
        on_change(tally)
    return tally


def _run_life(job: Job, tally: Tally, logs: Path, on_change: Callable[[Tally], None]) -> DemoError | None:
    """Run a worker to its end, and return its failure, or None if it ended as planned."""
    tally.started()
    on_change(tally)
    log = logs / f"worker-{tally.lives}.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "examples.flights.worker", job.to_json()], stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            for report in _reports(process):
                tally.reported(report)
                on_change(tally)
            status = process.wait(_SILENCE_LIMIT_S)
        except (TimeoutError, subprocess.TimeoutExpired):
            return _failure(job, tally, f"reported nothing for {_SILENCE_LIMIT_S:.0f} s", log)
        finally:
            process.kill()
    expected = 0 if job.kill is None else -signal.SIGKILL
    if status == expected:
        return None
    if status == REFUSED_STATUS:
        return RefusedError(f"the {job.method} cannot continue: {_tail(log, 1)}")
    what = "should have been killed but finished" if status == 0 else f"ended with {status}"
    return _failure(job, tally, what, log)


def _reports(process: subprocess.Popen[bytes]) -> Iterator[Report]:
    """Yield the worker's reports until it ends. Raises TimeoutError if none comes for too long."""
    assert process.stdout is not None
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(_SILENCE_LIMIT_S):
            chunk = os.read(process.stdout.fileno(), _CHUNK_BYTES)
            if not chunk:
                return  # `pending` is an incomplete line of a killed worker
            *lines, pending = (pending + chunk).split(b"\n")
            yield from map(Report.from_json, map(bytes.decode, lines))
    raise TimeoutError


def _failure(job: Job, tally: Tally, what: str, log: Path) -> WorkerFailedError:
    task = (
        "to write everything" if job.kill is None else f"to die {job.kill.point} from event {job.kill.from_number} on"
    )
    return WorkerFailedError(
        f"life {tally.lives} of the {job.method} worker, which was {task}, {what}; the end of its log:\n"
        f"{_tail(log, _LOG_TAIL_LINES)}"
    )


def _tail(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) or "(empty)"
