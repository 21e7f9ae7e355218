"""Flushes writes from the operating system's cache to the disk, and tells when they are durable.

Acknowledged records have one of three guarantees (`fsync`):

* always: they survive a power failure. Records are neither acknowledged nor visible to consumers before the disk has
  them. Appends while the disk is busy go with the next round, so that many producers share one fsync.
* interval: they survive a kill of the process at any moment; a power failure may lose the records of the last
  `log.flush.interval.ms`.
* never: they survive a kill of the process at any moment; the operating system decides when to write to the disk.

A thread waits for the disk, never the event loop.
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
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.slices import Steps, Work

logger = logging.getLogger(__name__)

_AT_ONCE = 500
"""The number of logs in a round that are taken, or finished, in one piece."""
_DESCRIPTOR_TIMEOUT_S = 30.0
_DESCRIPTOR_PAUSE_S = 0.05


class FlushJob(NamedTuple):
    """The flush of one log."""

    run: Callable[[], None]
    """Flushes, repeatedly if need be; runs in a thread. Raises OSError."""
    finished: Callable[[], None]
    """Runs in the event loop after the flush."""


class Flushable(Protocol):
    """A writer of files to flush."""

    def begin_flush(self) -> FlushJob:
        """Return the job that flushes everything written so far."""


class Flusher:
    """Flushes the logs of one data directory.

    Without an event loop, the caller flushes at once, for tests of a single log.
    """

    def __init__(self, fsync: Fsync, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.fsync = fsync
        self.writes = 0
        """The number of times that a log was marked."""
        self._loop = loop
        self._executor = None if loop is None else ThreadPoolExecutor(1, "fsync")
        self._dirty: dict[Flushable, None] = {}
        self._round: asyncio.Future[None] | None = None
        self._taken: dict[Flushable, None] = {}  # logs of the round whose jobs have not been taken yet
        self._preparation: Work[None] | None = None
        self._running: Future[None] | None = None  # the same round, running in the thread
        self._task: asyncio.Task[None] | None = None
        self._failure: StorageError | None = None
        self._is_scheduled = False

    @property
    def delays_acknowledgement(self) -> bool:
        """Whether appends must be flushed before they are acknowledged."""
        return self.fsync is Fsync.ALWAYS

    @property
    def is_behind(self) -> bool:
        """Whether there are appends that must not be acknowledged yet."""
        return self.delays_acknowledgement and (bool(self._dirty) or self._round is not None)

    def mark(self, written: Flushable, *, now: bool) -> None:
        """Mark a log for the next round, and with `now` start a round.

        A round starts at the end of the event loop's current iteration, to include all appends of the iteration.
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
        """Start a round unless one is running; called by the timer of fsync=interval."""
        if self._round is None and self._dirty and not self._is_scheduled:
            self._begin_round()

    def _begin_round(self) -> None:
        assert self._loop is not None
        self._is_scheduled = False
        if self._round is not None or not self._dirty:
            return
        self._round = self._loop.create_future()
        self._round.add_done_callback(lambda done: done.exception())  # retrieved, because possibly no task awaits it
        self._taken, self._dirty = self._dirty, {}
        self._preparation = self._carry_out(self._prepare(), len(self._taken))

    def _carry_out(self, steps: Steps[None], count: int) -> Work[None]:
        """Carry out steps, at once if there are few."""
        assert self._loop is not None
        work = Work(steps)
        if count <= _AT_ONCE:
            work.finish()
        else:
            self._task = self._loop.create_task(work.done_in_slices())
        return work

    def _prepare(self) -> Steps[None]:
        """Take the jobs of a round, and start the thread."""
        jobs: list[FlushJob] = []
        try:
            while self._taken:
                jobs.append(self._taken.popitem()[0].begin_flush())
                yield
        except Exception as error:  # now it is unknown which data had to be flushed
            self._end_round(error)
            return
        assert self._executor is not None
        self._running = self._executor.submit(_run_all_with_retries, jobs)
        work = asyncio.wrap_future(self._running, loop=self._loop)
        work.add_done_callback(lambda done: self._carry_out(self._finish(jobs, done), len(jobs)))

    def _finish(self, jobs: list[FlushJob], done: asyncio.Future[None]) -> Steps[None]:
        error = None if done.cancelled() else done.exception()
        try:
            for job in jobs if error is None else ():
                job.finished()
                yield
        except Exception as failure:
            error = failure
        self._end_round(error)

    def _take(self) -> list[FlushJob]:
        jobs = [written.begin_flush() for written in self._dirty]
        self._dirty.clear()
        return jobs

    def _end_round(self, error: BaseException | None) -> None:
        finished_round, self._round = self._round, None
        if error is not None:
            self._fail(error)
        assert finished_round is not None
        if self._failure is not None:
            finished_round.set_exception(self._failure)
        else:
            finished_round.set_result(None)
            if self._dirty and self.delays_acknowledgement:
                self._begin_round()

    def _fail(self, error: BaseException) -> None:
        problem = f"flushing to the disk failed: {error}; nothing more is acknowledged until a restart"
        logger.critical(problem)
        self._failure = StorageError(problem)

    def check(self) -> None:
        """Raise StorageError if a flush has failed: from then on the content of the disk is unknown."""
        if self._failure is not None:
            raise self._failure

    async def flushed(self) -> None:
        """Wait until all appends marked so far may be acknowledged. Raises StorageError if the disk fails."""
        goes_with_the_next = bool(self._dirty)
        if self._round is not None:
            await asyncio.shield(self._round)
        if goes_with_the_next:
            self._begin_round()
            if self._round is not None:
                await asyncio.shield(self._round)
        self.check()

    def forget(self, written: Flushable) -> None:
        """Drop a log from the next round: it no longer has to be flushed."""
        self._dirty.pop(written, None)
        self._taken.pop(written, None)

    def settle(self) -> None:
        """Block until the thread has finished its round; its files may then be changed."""
        if self._preparation is not None:
            self._preparation.finish()  # the jobs taken so far count as running
        if self._running is not None:
            wait([self._running])

    def flush(self) -> None:
        """Flush all marked logs now, in this thread. Raises StorageError."""
        jobs = self._take()
        try:
            _run_all(jobs)
        except OSError as error:
            self._fail(error)
            self.check()
        for job in jobs:
            job.finished()

    async def close(self) -> None:
        """Wait for the running round, and flush the rest. Raises StorageError."""
        if self._round is not None:
            await asyncio.shield(self._round)
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        self.check()
        self.flush()


def _run_all(jobs: list[FlushJob]) -> None:
    for job in jobs:
        job.run()


def _run_all_with_retries(jobs: list[FlushJob]) -> None:
    """Run all jobs. If client connections use up all file descriptors, wait a while for one."""
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
