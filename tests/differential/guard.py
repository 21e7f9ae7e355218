"""Ends an Apache Kafka whose parent was killed: a process of its own, which notices its parent's end.

`python -m tests.differential.guard` reads lines from its parent, `PID DIRECTORY` to guard a process with its files, and
an empty one to guard none. At the end of its input it kills the guarded process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self


class Guard:
    """The process, as its parent has it."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.differential.guard"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        return self

    def watch(self, pid: int, directory: Path) -> None:
        """Have this process killed with this one, and its directory removed; it replaces the one before."""
        self._tell(f"{pid} {directory}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._tell("")
        self._process.communicate()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def main() -> None:
    """Wait for the parent's end."""
    guarded = ""
    for line in sys.stdin:
        guarded = line.strip()
    if guarded:
        pid, directory = guarded.split(" ", 1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
