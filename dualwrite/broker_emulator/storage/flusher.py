"""Brings to the disk what the operating system still holds, and says when it is there.

Three promises (`fsync`), all of them for what was acknowledged:

* always: survives a power failure. Nothing is acknowledged, and nothing is shown to consumers, before the disk has
  it. What is appended while the disk is busy goes with the next round, so that many producers share one fsync.
* interval: survives the process being killed at any moment; a power failure may take what was written within the
  last `log.flush.interval.ms`.
* never: survives the process being killed at any moment; the operating system decides when the disk gets it.

The disk is waited for in a thread, never in the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple, Protocol

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.segment import StorageError

logger = logging.getLogger(__name__)

_DESCRIPTOR_TIMEOUT_S = 30.0
_DESCRIPTOR_PAUSE_S = 0.05


class FlushJob(NamedTuple):
    """What one log has to bring to the disk at one moment."""

    run: Callable[[], None]
    """Does it, or does it again; runs in a thread. Raises OSError."""
    finished: Callable[[], None]
    """Runs in the event loop when it is done."""


class Flushable(Protocol):
    """Something that writes to files."""

    def begin_flush(self) -> FlushJob:
        """What is to be done for everything written so far."""


class Flusher:
    """All logs of one data directory that have something to flush.

    Without an event loop everything is done at once by the caller, which is what tests of a single log want.
    """

    def __init__(self, fsync: Fsync, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.fsync = fsync
        self.writes = 0
        """How often something was marked."""
        self._loop = loop
        self._executor = None if loop is None else ThreadPoolExecutor(1, "fsync")
        self._dirty: dict[Flushable, None] = {}
        self._round: asyncio.Future[None] | None = None
        self._running: Future[None] | None = None  # the same round, as its thread knows it
        self._failure: StorageError | None = None
        self._is_scheduled = False

    @property
    def delays_acknowledgement(self) -> bool:
        """Whether nothing may be acknowledged before it is flushed."""
        return self.fsync is Fsync.ALWAYS

    @property
    def is_behind(self) -> bool:
        """Whether something must not be acknowledged yet."""
        return self.delays_acknowledgement and (bool(self._dirty) or self._round is not None)

    def mark(self, written: Flushable, *, now: bool) -> None:
        """`written` has something to flush: in the next round that takes place anyway, or in one that starts `now`.

        A round begins when the event loop has finished its present turn, so that what is appended in it goes along.
        """
        self._dirty[written] = None
        self.writes += 1
        if not now or self._round is not None or self._is_scheduled:
            return
        if self._loop is None:
            self.flush()
        else:
            self._is_scheduled = True
            self._loop.call_soon(self._begin_round)

    def begin_round(self) -> None:
        """Begin a round unless one is under way: what the timer of `interval` calls."""
        if self._round is None and self._dirty and not self._is_scheduled:
            self._begin_round()

    def _begin_round(self) -> None:
        assert self._loop is not None
        self._is_scheduled = False
        if self._round is not None or not self._dirty:
            return
        jobs = self._take()
        self._round = self._loop.create_future()
        self._round.add_done_callback(lambda done: done.exception())  # nobody may be waiting
        assert self._executor is not None
        self._running = self._executor.submit(_run_all_patiently, jobs)
        work = asyncio.wrap_future(self._running, loop=self._loop)
        work.add_done_callback(lambda done: self._end_round(jobs, done))

    def _take(self) -> list[FlushJob]:
        jobs = [written.begin_flush() for written in self._dirty]
        self._dirty.clear()
        return jobs

    def _end_round(self, jobs: list[FlushJob], done: asyncio.Future[None]) -> None:
        finished_round, self._round = self._round, None
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._fail(error)
        else:
            for job in jobs:
                job.finished()
        assert finished_round is not None
        if self._failure is not None:
            finished_round.set_exception(self._failure)
        else:
            finished_round.set_result(None)
            if self._dirty and self.delays_acknowledgement:
                self._begin_round()

    def _fail(self, error: BaseException) -> None:
        problem = f"the disk does not take what was written: {error}; nothing more is acknowledged until a restart"
        logger.critical(problem)
        self._failure = StorageError(problem)

    def check(self) -> None:
        """Raises StorageError once a flush has failed: nobody knows then what the disk has."""
        if self._failure is not None:
            raise self._failure

    async def flushed(self) -> None:
        """Return when everything marked so far may be acknowledged. Raises StorageError when the disk fails."""
        goes_with_the_next = bool(self._dirty)
        if self._round is not None:
            await asyncio.shield(self._round)
        if goes_with_the_next:
            self._begin_round()
            if self._round is not None:
                await asyncio.shield(self._round)
        self.check()

    def forget(self, written: Flushable) -> None:
        """Nothing of `written` has to be flushed any more."""
        self._dirty.pop(written, None)

    def settle(self) -> None:
        """Wait, blocking, until the thread writes nothing any more; what it wrote may be changed then."""
        if self._running is not None:
            wait([self._running])

    def flush(self) -> None:
        """Flush everything now, in this thread. Raises StorageError."""
        jobs = self._take()
        try:
            _run_all(jobs)
        except OSError as error:
            self._fail(error)
            self.check()
        for job in jobs:
            job.finished()

    async def close(self) -> None:
        """Wait for a round that is under way, and flush what is left. Raises StorageError."""
        if self._round is not None:
            await asyncio.shield(self._round)
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        self.check()
        self.flush()


def _run_all(jobs: list[FlushJob]) -> None:
    for job in jobs:
        job.run()


def _run_all_patiently(jobs: list[FlushJob]) -> None:
    """As `_run_all`; where clients' connections have taken all descriptors, that waits a while for one."""
    deadline = time.monotonic() + _DESCRIPTOR_TIMEOUT_S
    for job in jobs:
        while True:
            try:
                job.run()
                break
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or time.monotonic() > deadline:
                    raise
                time.sleep(_DESCRIPTOR_PAUSE_S)
