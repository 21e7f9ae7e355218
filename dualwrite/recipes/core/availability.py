"""Whether Kafka can be reached, as the dual writes of one writer or pool have found it.

The first block that reaches no broker makes Kafka AWAY. Until a broker is reached again, all blocks are refused before
they begin a database transaction, because each would hold it open, with its locks, only to fail.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dualwrite.client.io_thread import this_process
from dualwrite.errors import KafkaUnreachableError
from dualwrite.recipes.core.metrics import availabilities

if TYPE_CHECKING:
    from dualwrite.client.wire.cluster import ClusterSettings

_log = logging.getLogger(__name__)


# ---- the watch for its return: in the I/O thread that all producers for threads share, or in a task of a loop --------

Steps = Coroutine[Any, Any, None]


class IoThreadWatch:
    """Runs steps beside the dual writes; those that were started before end. `is_running`: in this process."""

    def __init__(self) -> None:
        self._running: Future[None] | None = None
        self._generation = this_process.generation

    @property
    def is_running(self) -> bool:
        running = self._running
        return running is not None and not running.done() and self._generation == this_process.generation

    def start(self, steps: Steps) -> None:
        from dualwrite.async_producer import run_in_background

        self.stop()
        self._generation = this_process.generation
        self._running = run_in_background(steps)

    def stop(self) -> None:
        if self.is_running:
            assert self._running is not None, "it is running"
            self._running.cancel()


class TaskWatch:
    """The same for the loop of the caller."""

    def __init__(self) -> None:
        self._running: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        running = self._running
        return running is not None and not running.done() and running.get_loop() is _running_loop()

    def start(self, steps: Steps) -> None:
        loop = _running_loop()
        if loop is None:  # in a forked child, or while the interpreter ends: nothing waits for Kafka there
            steps.close()
            return
        self._running = loop.create_task(steps, name="dualwrite-kafka-watch")

    def stop(self) -> None:
        if self._running is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._running.cancel()


KafkaWatch = IoThreadWatch | TaskWatch


def here() -> object:
    """Return this process and its running event loop: equal where the same connections may be used."""
    return this_process.generation, _running_loop()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


# ---- Kafka, present or away ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Away:
    """An outage of Kafka: when it began, in seconds since 1970, and the problem of the last attempt."""

    since_s: float
    problem: str

    def sentence(self, now_s: float) -> str:
        since = datetime.fromtimestamp(self.since_s, UTC)
        problem = f"; {self.problem}" if self.problem else ""
        return f"Kafka cannot be reached since {since:%Y-%m-%d %H:%M:%S} UTC ({now_s - self.since_s:.1f} s{problem})"


class Availability:
    """Kafka as PRESENT (`away` is None) or AWAY. Thread-safe; nothing here waits."""

    def __init__(
        self,
        cluster: ClusterSettings | None = None,
        watch: KafkaWatch | None = None,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """`watch` waits in the background until `cluster` can be reached; without it, Kafka never counts as AWAY."""
        self.away: Away | None = None
        """None while Kafka is PRESENT; read by each block."""
        self.on_change: Callable[[], object] = lambda: None
        """Called when Kafka has become AWAY or PRESENT, from any thread; must be quick."""
        self._cluster = cluster
        self._watch = watch
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._is_closed = False
        self._noted_by = 0
        """The process that noted `away`; a forked child knows nothing of Kafka yet."""
        if watch is not None:
            availabilities.add(self)

    @property
    def is_away(self) -> bool:
        return self.away is not None

    @property
    def away_for_s(self) -> float | None:
        """How long Kafka has been AWAY; None while it is PRESENT, and in a forked child that has not tried it."""
        away = self.away
        return None if away is None or self._noted_by != os.getpid() else self._clock_s() - away.since_s

    def note(self, error: KafkaUnreachableError, *, of_block: bool = True) -> KafkaUnreachableError:
        """Note that no broker can be reached. Return the error for the block that found it, which is rolled back.

        With `of_block=False` return that of a recovery, which may have found a decided dual write in doubt.
        """
        away = Away(self._clock_s() - error.since_s, error.problem)
        with self._lock:
            begins = self.away is None and self._watch is not None and not self._is_closed
            if begins:
                self.away, self._noted_by = away, os.getpid()
        if begins:
            _log.warning("%s; the writers resume by themselves when it is back", away.sentence(self._clock_s()))
            self.keep_watching()
            self.on_change()
        return self._refusal(self.away or away, of_block=of_block)

    def refusal(self) -> KafkaUnreachableError:
        self.keep_watching()
        away = self.away
        return self._refusal(away if away is not None else Away(self._clock_s(), "it has just come back"))

    def _refusal(self, away: Away, *, of_block: bool = True) -> KafkaUnreachableError:
        now_s = self._clock_s()
        said = away.sentence(now_s)
        of_recovery = f"{said}. A dual write in doubt stays so until recover(), or a pool's background, completes it"
        of_refused = (
            f"neither side was changed: {said}. Repeat the block later; the writer resumes by itself when Kafka is back"
        )
        return KafkaUnreachableError(
            of_refused if of_block else of_recovery,
            since_s=now_s - away.since_s,
            problem=away.problem,
        )

    def note_present(self) -> None:
        with self._lock:
            away, self.away = self.away, None
        if away is not None:
            _log.warning("Kafka is reachable again after %.1f s", self._clock_s() - away.since_s)
            self.on_change()

    def keep_watching(self) -> None:
        """Watch for Kafka's return unless a watch is running; in a forked child or another loop, none is."""
        watch, cluster = self._watch, self._cluster
        if watch is None or cluster is None:
            return
        with self._lock:
            if self.away is not None and not self._is_closed and not watch.is_running:
                watch.start(_until_present(weakref.ref(self), cluster))

    def close(self) -> None:
        availabilities.forget(self)
        with self._lock:
            self._is_closed = True
        if self._watch is not None:
            self._watch.stop()


async def _until_present(found: weakref.ref[Availability], cluster: ClusterSettings) -> None:
    """Wait for Kafka as long as the Availability is alive, then note that it is back."""
    from dualwrite.client.wire.reachability import wait_until_reachable

    await wait_until_reachable(cluster, lambda: found() is not None)
    availability = found()
    if availability is not None:
        availability.note_present()


NEVER_AWAY: Final = Availability()
"""For recovery of single ids, where no block waits."""
