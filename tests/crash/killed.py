"""Processes, forked from a preloaded one, that kill themselves in the middle of a dual write."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash import worker
from tests.crash.scenario import AnyScenario
from tests.support.forked_processes import processes

DEADLINE_S = 60


def run_until_killed(main: Callable[[list[str]], object], *arguments: str) -> None:
    """Let `main(arguments)` run in a process that must not come to its end. Fails with its output, if it does."""
    context = processes()
    ours, theirs = context.Pipe()
    process = context.Process(target=_told, args=(theirs, main, list(arguments)))
    process.start()
    theirs.close()
    process.join(DEADLINE_S)
    is_stuck = process.exitcode is None
    process.kill()
    process.join()
    said = "nothing"
    with contextlib.suppress(EOFError):
        said = ours.recv() if ours.poll(0) else said
    ours.close()
    assert not is_stuck, f"it did not end within {DEADLINE_S} s"
    assert process.exitcode == -signal.SIGKILL, said


def run_until_killed_at(point: PausePoint, scenario: AnyScenario, *options: str) -> None:
    """Dual write 1 of the scenario, by another process; `options` are those of `worker.py`."""
    run_until_killed(
        worker.main,
        *("--database-url", scenario.database.url.render_as_string(hide_password=False)),
        *("--bootstrap-servers", scenario.emulator.bootstrap_servers),
        *("--transactional-id", scenario.transactional_id),
        *("--topic", scenario.topic),
        *("--point", point),
        *options,
    )


def _told(to: Connection, main: Callable[[list[str]], object], arguments: list[str]) -> None:
    try:
        main(arguments)
    except BaseException:
        to.send(traceback.format_exc())
        raise
