"""The loops of a pool's background, on threads and tasks, after failures and cancellations."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dualwrite.recipes.pool import runtime
from dualwrite.recipes.pool.runtime import Loops, TaskRuntime, ThreadRuntime
from tests.support.conditions import until


class Counted:
    """Loops that note their rounds."""

    def __init__(self) -> None:
        self.rounds: list[str] = []

    async def fail_once(self) -> None:
        self.rounds.append("failing")
        if self.rounds.count("failing") == 1:
            raise OSError("a moment of trouble")

    async def end(self) -> None:
        self.rounds.append("ending")


def test_a_thread_that_cannot_be_started_now_is_started_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted()
    loops = Loops(ThreadRuntime(), {"one": counted.end, "two": counted.end})
    genuine = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "two":
            raise RuntimeError("can't start new thread")
        genuine(thread)

    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            loops.start()
    assert not loops.are_running
    loops.start()
    until(lambda: len(counted.rounds) >= 2)


def test_a_loop_that_fails_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_SECONDS_AFTER_FAILURE", 0.0)
    monkeypatch.setattr(runtime._log, "error", 1 / 2)  # a logger that cannot be called
    counted = Counted()
    loops = Loops(ThreadRuntime(), {"one": counted.fail_once})
    loops.start()
    until(lambda: not loops.are_running)
    assert counted.rounds == ["failing", "failing"]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_cancelled_loop_is_started_again(has_begun: bool) -> None:
    begun: list[str] = []

    async def wait() -> None:
        begun.append("loop")
        await asyncio.Event().wait()

    loops = Loops(TaskRuntime(), {"one": wait, "two": wait})
    for _ in range(2):
        loops.start()
        loops.start()
        if has_begun:
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(tasks) == 2
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0)  # the tasks' callbacks
        assert not loops.are_running
    assert len(begun) == (4 if has_begun else 0)
