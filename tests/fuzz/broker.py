"""The broker under attack: a child process with a data directory, its log, its memory and its CPU time."""

from __future__ import annotations

import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, Self

from tests.fuzz.cases import Entrance

_START_TIMEOUT_S: Final = 60.0
_ALARMING: Final = re.compile(rb"^(?:ERROR|CRITICAL|Traceback|Exception ignored|Fatal Python error)", re.MULTILINE)
_ROOT: Final = Path(__file__).parents[2]


class NotOpenedError(Exception):
    """The broker did not start on its directory; the message has the end of its log."""


class FuzzedBroker:
    """One process after the other on one directory."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="dualwrite-fuzz-", ignore_cleanup_errors=True)
        self.data = Path(self._directory.name) / "data"
        self._log = Path(self._directory.name) / "log"
        self._read_up_to = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._addresses: tuple[tuple[str, int], ...] = ()

    def start(self) -> Self:
        """Start a process and wait until it listens. Raises NotOpenedError."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.child", str(self.data)],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_TIMEOUT_S)
        line = self._process.stdout.readline().decode() if ready else ""
        if not line:
            self.kill()
            raise NotOpenedError(self._log.read_text(errors="replace")[-3_000:])
        self._addresses = tuple((host, int(port)) for host, _, port in (a.rpartition(":") for a in line.split()))
        return self

    def address(self, entrance: Entrance) -> tuple[str, int]:
        """Return the host and port of the listener for this entrance."""
        return self._addresses[0 if entrance is Entrance.PLAIN else 1]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it with SIGTERM; its exit status."""
        return self._end(signal.SIGTERM)

    @property
    def status(self) -> str:
        """How it has ended, and the end of its log."""
        assert self._process is not None
        return f"{self._log.read_text(errors='replace')[-2_000:]}\nexit status {self._process.poll()}"

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(number)
        try:
            return self._process.wait(_START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._process.stdout.close()

    def alarming_lines(self) -> str:
        """Return its log since the last call, from the first line of level ERROR on; "" without one."""
        size = self._log.stat().st_size
        if size == self._read_up_to:
            return ""
        with self._log.open("rb") as log:
            log.seek(self._read_up_to)
            written = log.read(size - self._read_up_to)
        self._read_up_to = size
        found = _ALARMING.search(written)
        return "" if found is None else written[found.start() :].decode(errors="replace")

    def last_stacks(self) -> str:
        """Return its threads' stacks from the last time that the prober asked."""
        written = self._log.read_text(errors="replace")
        position = written.rfind("stack:")
        return written[position:][:3_000] if position >= 0 else ""

    def memory_mib(self) -> float:
        """Return the resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        return int(found[1]) / 1024 if found else 0.0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.is_alive:
            self.kill()
        self._directory.cleanup()


def cpu_seconds_by_thread(pid: int) -> dict[str, float]:
    """Return how long each thread of a process has run, in seconds."""
    used = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            used[thread.name] = int((thread / "schedstat").read_text().split()[0]) / 1e9
        except (OSError, IndexError):
            continue  # it has ended
    return used
