"""Faults at the sink's pause points, armed from outside: the processes of a query share only a directory.

An armed fault is a file there. The first process that reaches its point removes the file, and executes the fault: it
fails, kills itself or the JVM, or is suspended. So each fault strikes once, however often the point is reached.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from spark_sink.driver.protocol import Sink
from spark_sink.face import DualWriteKafka
from spark_sink.options import SinkOptions
from spark_sink.pause_points import PausePoint
from tests.support.conditions import until

_LONGEST_WAIT_S: Final = 60.0


class Process(StrEnum):
    """A query's Python process, by the module that Spark runs in it."""

    PLANNER = "pyspark.sql.worker.write_into_data_source"
    TASK = "pyspark.worker"
    COMMITTER = "pyspark.sql.worker.python_streaming_sink_runner"


class Action(StrEnum):
    """The effect of a fault."""

    RAISE = "raise"
    KILL_WORKER = "kill-worker"
    """Kill this Python process."""
    KILL_JVM = "kill-jvm"
    """Kill the JVM, and with it this process."""
    ORPHAN = "orphan"
    """Kill the JVM; this process continues for as long as it can."""
    STALL = "stall"
    """Sleep for a while, and continue."""
    WAIT = "wait"
    """Wait until the test has called `struck()`."""


class InjectedError(Exception):
    """The error of a fault."""


@dataclass(frozen=True)
class Fault:
    """An action for the first process that reaches the point; `process` None: of any kind."""

    point: PausePoint
    action: Action
    process: Process | None = None

    @property
    def text(self) -> str:
        """The fault as part of a file name."""
        return f"{self.point}~{self.action}~{self.process or 'any'}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """The inverse of `text`."""
        point, action, process = text.split("~")
        return cls(PausePoint(point), Action(action), None if process == "any" else Process(process))


class Faults:
    """The faults of one query."""

    def __init__(self, directory: Path, *, stall_s: float = 2.0) -> None:
        self._armed = directory / "armed"
        self._struck = directory / "struck"
        self._stall_s = stall_s
        self._count = 0
        for made in (self._armed, self._struck):
            made.mkdir(parents=True, exist_ok=True)

    def arm(self, fault: Fault) -> None:
        self._count += 1
        (self._armed / f"{time.time_ns()}-{self._count}~{fault.text}").touch()

    def disarm(self) -> list[Fault]:
        """Remove and return the faults that have not struck."""
        return _taken(self._armed)

    def armed(self) -> int:
        return len(list(self._armed.iterdir()))

    def has_struck(self) -> bool:
        return any(self._struck.iterdir())

    def struck(self) -> list[Fault]:
        """Return the faults that have struck since the last call; let a process continue that waits for this call."""
        return _taken(self._struck)

    def format(self, name: str) -> type[DualWriteKafka]:
        """Return a format with these faults, to be registered and used as `name`."""
        opened = OpenWithFaults(str(self._armed), str(self._struck), self._stall_s)
        # a new class each time, so it is pickled by value: each query has a directory of its own
        return type("FaultyKafka", (DualWriteKafka,), {"name": classmethod(lambda cls: name), "open_sink": opened})


def _taken(directory: Path) -> list[Fault]:
    found = []
    for each in sorted(directory.iterdir()):
        try:
            each.unlink()
        except FileNotFoundError:
            continue  # it has struck just now
        found.append(Fault.parse(each.name.partition("~")[2]))
    return found


@dataclass(frozen=True)
class OpenWithFaults:
    """Opens the sink in one of Spark's processes; compares equal in all of them."""

    armed: str
    struck: str
    stall_s: float

    def __call__(self, options: SinkOptions) -> Sink:
        return Sink.open(options, pause=self.meet)

    def meet(self, point: PausePoint) -> None:
        """Execute a fault that is armed for this pause point."""
        for file in sorted(Path(self.armed).iterdir()):
            fault = Fault.parse(file.name.partition("~")[2])
            if fault.point is point and fault.process in (None, _this_process()):
                self._strike(fault, file)

    def _strike(self, fault: Fault, armed: Path) -> None:
        struck = Path(self.struck, armed.name)
        try:
            armed.rename(struck)
        except FileNotFoundError:
            return  # another process has it
        if fault.action is Action.WAIT:
            until(lambda: not struck.exists(), _LONGEST_WAIT_S)
        elif fault.action is Action.STALL:
            time.sleep(self.stall_s)
        else:
            _ACTIONS[fault.action]()


def _this_process() -> Process | None:
    return next((each for each in Process if each in sys.argv[1:]), None)


def _raise() -> None:
    raise InjectedError("injected")


def _kill_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_jvm() -> None:
    _orphan()
    os.kill(os.getpid(), signal.SIGKILL)


def _orphan() -> None:
    os.kill(_jvm_above(os.getpid()), signal.SIGKILL)


def _jvm_above(pid: int) -> int:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            return pid
    raise AssertionError("this process was not started by a JVM")


_ACTIONS: Final[Mapping[Action, Callable[[], None]]] = {
    Action.RAISE: _raise,
    Action.KILL_WORKER: _kill_worker,
    Action.KILL_JVM: _kill_jvm,
    Action.ORPHAN: _orphan,
}
