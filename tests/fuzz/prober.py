"""Another client beside the attack, which measures its response times."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tests.emulator.api.raw_client import RawClient
from tests.fuzz.broker import FuzzedBroker, cpu_seconds_by_thread
from tests.fuzz.cases import Entrance

_INTERVAL_S: Final = 0.004
_PATIENCE_S: Final = 30.0
_WONDERS_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Stall:
    """One wait for a response."""

    waited_s: float
    busy_s: float
    """How long the busiest thread of the broker ran meanwhile: on a loaded machine it may have waited for a CPU."""

    @property
    def duration_s(self) -> float:
        return min(self.waited_s, self.busy_s)


NO_STALL: Final = Stall(0.0, 0.0)


class Prober:
    """Asks for the API versions, again and again, in a thread; `worst` is its longest wait."""

    def __init__(self, broker: FuzzedBroker, patience_s: float) -> None:
        self._wonders_after_s = patience_s
        host, port = broker.address(Entrance.PLAIN)
        self._pid = broker.pid
        self._client = RawClient(f"{host}:{port}", "prober")
        self._client.be_patient_for(_PATIENCE_S)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._worst = NO_STALL
        self.failure: str | None = None
        self._waits_since_s: float | None = None
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._run, self._wonder)]

    def take_worst(self) -> Stall:
        """Return the worst stall since the last call."""
        with self._lock:
            worst, self._worst = self._worst, NO_STALL
        return worst

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(_PATIENCE_S + 1)
        self._client.__exit__(kind, error, trace)

    def _run(self) -> None:
        before = cpu_seconds_by_thread(self._pid)
        while not self._stopped.wait(_INTERVAL_S):
            try:
                began_s = self._waits_since_s = time.monotonic()
                self._client.call("api_versions", 3, client_software_name="prober", client_software_version="1")
                waited_s = time.monotonic() - began_s
                self._waits_since_s = None
                after = cpu_seconds_by_thread(self._pid)
            except (OSError, AssertionError) as error:
                if not self._stopped.is_set():
                    self.failure = f"a client beside the attack was not served: {error!r}"
                return
            stall = Stall(waited_s, _busiest(before, after))
            before = after
            with self._lock:
                self._worst = max(self._worst, stall, key=lambda each: each.duration_s)

    def _wonder(self) -> None:
        """Have the broker log the stacks of all its threads, once for each slow response."""
        asked_about: float | None = None
        while not self._stopped.wait(_WONDERS_EVERY_S):
            since_s = self._waits_since_s
            if since_s in (None, asked_about) or time.monotonic() - (since_s or 0.0) < self._wonders_after_s:
                continue
            asked_about = since_s
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGUSR1)


def _busiest(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    return max((used - before.get(thread, 0.0) for thread, used in after.items()), default=0.0)
