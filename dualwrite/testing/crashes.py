"""Crashes of the broker, or of a process that uses it, at a point that the test names.

    ended = kafka_crashes.kill_client([sys.executable, "service.py"], at="EndTxn", applied=True)

runs a process until the broker has applied its EndTxn, and kills the process before it gets the response.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dualwrite.broker_emulator import DropRequest, Fault, HoldReply
from dualwrite.broker_emulator.emulator import Emulator

BOOTSTRAP_VARIABLE: Final = "KAFKA_BOOTSTRAP_SERVERS"
"""The environment variable with the broker's address, set for the process that `kill_client` runs."""

_POLL_S: Final = 0.05


class KilledClient(NamedTuple):
    """The output of a killed process, on standard output and standard error."""

    stdout: str
    stderr: str


class ClientNotKilledError(AssertionError):
    """The process ended by itself, or the time ran out, before the request at which it was to be killed."""


class Crashes:
    """Crashes of a test's broker and of the processes that use it."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def restart_broker(self) -> None:
        """Stop every node as SIGKILL would and start it again.

        Connections break; everything that was acknowledged is still stored.
        """
        nodes = self._emulator.living_nodes
        for node_id in nodes:
            self._emulator.crash_node(node_id)
        for node_id in nodes:
            self._emulator.start_node(node_id)

    def kill_client(
        self,
        command: Sequence[str],
        *,
        at: str,
        applied: bool,
        skip: int = 0,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        **selectors: Any,
    ) -> KilledClient:
        """Run a process and kill it with SIGKILL at one of its requests.

        `at` is the request's API, such as "EndTxn"; `selectors` are further selectors of `Fault`, such as `topic` or
        `transactional_id`; the first `skip` matching requests pass. If `applied`, the broker has applied the request
        when the process is killed; otherwise it never will. The process gets the broker's address in the environment
        variable `KAFKA_BOOTSTRAP_SERVERS`; `env` adds variables. Its standard input is empty.

        Raises ClientNotKilledError, with the process's output, if it never sent that request.
        """
        action = HoldReply() if applied else DropRequest()
        fault = self._emulator.faults.add(Fault(api=at, action=action, skip=skip, **selectors))
        try:
            process = _Process(command, {BOOTSTRAP_VARIABLE: self._emulator.bootstrap_servers, **(env or {})})
            try:
                wait = fault.wait_held if applied else fault.wait
                self._wait(process, wait, f"request {skip + 1} of {at}", timeout_s)
            finally:
                written = process.kill()
        finally:
            fault.remove()
        return written

    def _wait(self, process: _Process, wait: Callable[[int, float], object], what: str, timeout_s: float) -> None:
        for _ in range(int(timeout_s / _POLL_S)):
            try:
                wait(1, _POLL_S)
                return
            except TimeoutError:
                if process.has_ended:
                    raise ClientNotKilledError(f"the process ended before {what}, {process.kill_and_show()}") from None
        raise ClientNotKilledError(f"{what} did not come within {timeout_s} s: {process.kill_and_show()}")


class _Process:
    """A process whose output is read while it runs, so that a full pipe never blocks it."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            list(command),
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,  # that of the tests differs: a terminal in one run, a closed pipe in the next
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._written: tuple[str, str] = ("", "")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self._written = self._process.communicate()

    @property
    def has_ended(self) -> bool:
        return not self._reader.is_alive()

    def kill(self) -> KilledClient:
        """Kill the process unless it has ended; return its output."""
        if not self.has_ended:
            self._process.send_signal(signal.SIGKILL)
        self._reader.join()
        return KilledClient(*self._written)

    def kill_and_show(self) -> str:
        stdout, stderr = self.kill()
        return f"exit status {self._process.returncode}, output {stdout!r}, errors {stderr!r}"
