"""The application as a process that can be killed together with the processes it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from examples.flights_spark.job import Job

_ROOT: Final = Path(__file__).parents[2]


class Application:
    """`python -m examples.flights_spark.driver` in a process group of its own, which the JVM joins."""

    def __init__(self, job: Job, log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.flights_spark.driver", job.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=_ROOT,
            )

    def status(self) -> int | None:
        """Return the exit status, or None while the application runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Send SIGKILL to the driver and its JVM at the same time. Python workers end when their JVM is gone."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def log_tail(self, lines: int) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:]) or "(nothing)"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
