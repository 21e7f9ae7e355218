"""A Spark driver in a process of its own, with its JVM and its Python workers."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]


class DriverProcess:
    """Runs a module of the tests; the processes that it starts are found by their operating system session."""

    def __init__(self, module: str, *arguments: str, log: Path) -> None:
        self._jvm: int | None = None
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=_REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until the driver has printed that it is ready."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == b"ready":
                (self._jvm,) = (pid for pid in self._family() if _command(pid) == "java")
                return
        raise AssertionError("the driver has ended before it was ready")

    def go(self) -> None:
        """Let the driver begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    @property
    def is_alive(self) -> bool:
        """Whether its own process and, once it was ready, its JVM are running."""
        return self._process.poll() is None and (self._jvm is None or _session(self._jvm) is not None)

    def wait_until_the_jvm_dies(self, timeout_s: float) -> None:
        """Wait for the death of the JVM."""
        assert self._jvm is not None, "it is not ready"
        try:
            jvm = os.pidfd_open(self._jvm)
        except ProcessLookupError:
            return
        try:
            assert select.select([jvm], [], [], timeout_s)[0], f"the JVM lives on after {timeout_s} s"
        finally:
            os.close(jvm)

    def wait(self, timeout_s: float) -> int:
        """Wait for the end, and return the exit status."""
        return self._process.wait(timeout_s)

    def workers(self) -> list[int]:
        """Return the Python processes that the JVM has started."""
        return [pid for pid in self._family() if _command(pid).startswith("python") and pid != self._process.pid]

    def send(self, signal_number: int) -> None:
        """Send a signal to all processes."""
        for pid in self._family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal_number)

    def kill(self) -> None:
        """Kill all processes, repeatedly until none is left: one may just be starting another."""
        while self._family():
            self.send(signal.SIGKILL)
            self._process.poll()
            time.sleep(0.01)  # killing and finding a JVM both take a moment
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _family(self) -> list[int]:
        mine = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        return [pid for pid in mine if _session(pid) == self._process.pid]


def _session(pid: int) -> int | None:
    """Return the operating system session of a running process."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(session)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
