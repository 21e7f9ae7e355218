"""Crashes at instants that a test names: of the broker, and of the process that uses it.

    ended = kafka_crashes.kill_client([sys.executable, "service.py"], at="EndTxn", applied=True)

ran a process until the broker had carried its EndTxn out, and killed it before it could hear of that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.faults import DropRequest, Fault, HoldReply

BOOTSTRAP_VARIABLE: Final = "KAFKA_BOOTSTRAP_SERVERS"
"""The environment variable in which a process finds the broker."""

_TURN_S: Final = 0.05


class KilledClient(NamedTuple):
    """A process that was killed, and what it had written until then."""

    stdout: str
    stderr: str


class ClientNotKilledError(AssertionError):
    """The process ended by itself, or the time did, before it came to where it was to be killed."""


class Crashes:
    """For the broker of a test."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def restart_broker(self) -> None:
        """End every node as SIGKILL does, and start it again: connections break, and what was acknowledged is there."""
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
        """Run a process, and end it by SIGKILL at one of its requests.

        `at` is the request's API, such as "EndTxn", and `selectors` are more of a Fault's, such as `topic` or
        `transactional_id`; the first `skip` matching requests pass. With `applied` the broker has carried the request
        out, without it never will. The process finds the broker in `KAFKA_BOOTSTRAP_SERVERS`; `env` are more variables,
        and its standard input is empty.

        Raises ClientNotKilledError with what the process wrote, where it never sent that request.
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
        for _ in range(int(timeout_s / _TURN_S)):
            try:
                wait(1, _TURN_S)
                return
            except TimeoutError:
                if process.has_ended:
                    raise ClientNotKilledError(f"the process ended before {what}, {process.kill_and_say()}") from None
        raise ClientNotKilledError(f"{what} did not come within {timeout_s} s: {process.kill_and_say()}")


class _Process:
    """A process whose output is read while it runs, so that it never waits for that."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            list(command),
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,  # not the tests': a terminal in one run, a closed pipe in the next
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
        """Harmless when it has ended."""
        if not self.has_ended:
            self._process.send_signal(signal.SIGKILL)
        self._reader.join()
        return KilledClient(*self._written)

    def kill_and_say(self) -> str:
        stdout, stderr = self.kill()
        return f"exit status {self._process.returncode}, output {stdout!r}, errors {stderr!r}"
