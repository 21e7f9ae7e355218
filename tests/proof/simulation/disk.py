"""The disk of the brokers: a data directory of the emulator, whose power can fail.

A file's contents get to the disk when it is synced. At a power failure, only the synced part of each partition's file
is certain; of the later writes, a drawn part is left, possibly followed by zeros, as a torn write leaves it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log import disk_log, flusher
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.storage.data_directory import DataDirectory
from tests.proof.simulation.determinism import POWER_FAILED, Replacement, replaced
from tests.proof.simulation.loop import Process, SimulatedLoop


class _Executor:
    """The thread that waits for the disk: its work takes virtual time."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def submit(self, work: Callable[..., None], *given: Any) -> Future[None]:
        """Do some work later."""
        future: Future[None] = Future()
        self._disk.later(future, lambda: _do(future, work, given))
        return future

    def shutdown(self, wait: bool = True) -> None:
        """Do nothing."""


def _do(future: Future[None], work: Callable[..., None], given: tuple[Any, ...]) -> None:
    if future.done():
        return
    try:
        work(*given)
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(None)


class Disk:
    """One data directory."""

    def __init__(self, loop: SimulatedLoop, process: Process, random: Random) -> None:
        self._loop = loop
        self._process = process
        self._random = random
        self._path: Final = Path(tempfile.mkdtemp(prefix="simulated-", dir=_memory()))
        self._synced: dict[Path, int] = {}
        """How many bytes of each file are certain."""
        self._slowness = random.choice((1, 10, 100))
        self._has_power = True
        self._pending: dict[Future[None], None] = {}
        self._storage: DataDirectory | None = None

    def open(self) -> DataDirectory:
        """Open the data directory, as a broker that starts does."""
        self._has_power = True
        storage = self._storage = DataDirectory.open(self._path, fsync=Fsync.ALWAYS, loop=self._loop)
        self._synced = {path: path.stat().st_size for path in self._path.glob("*/*.log")}
        return storage

    def later(self, future: Future[None], work: Callable[[], None]) -> None:
        """Do some work that takes the disk time."""
        due_s = self._loop.now_s + self._slowness * (0.0002 + 0.004 * self._random.random() ** 2)
        self._pending[future] = None
        future.add_done_callback(lambda done: self._pending.pop(done, None))
        self._loop.call_at_in(self._process, due_s, work)

    def sync(self, path: Path) -> None:
        """Make a file's contents certain."""
        if self._has_power and path.exists():
            self._synced[path] = path.stat().st_size

    async def fail(self) -> list[str]:
        """Lose all uncertain data, and close the data directory. Return which files lost data."""
        self._has_power = False
        for future in list(self._pending):
            future.set_exception(OSError(POWER_FAILED))
        storage, self._storage = self._storage, None
        if storage is not None:
            with suppress(StorageError):
                await storage.close(is_complete=False)
        torn = []
        for path in sorted(self._path.glob("*/*.log")):
            size, certain = path.stat().st_size, self._synced.get(path, 0)
            if size == certain:
                continue
            left = certain + int(self._random.random() * (size - certain))
            os.truncate(path, left)
            if self._random.random() < 0.5:
                os.truncate(path, size)  # zeros
            torn.append(f"{path.parent.name} keeps {left} of {size} bytes")
        return torn

    def remove(self) -> None:
        """Delete everything."""
        if self._storage is not None:
            blocked = self._storage.close(is_complete=False)
            with suppress(StorageError, RuntimeError, StopIteration):
                blocked.send(None)
            blocked.close()
        shutil.rmtree(self._path, ignore_errors=True)


@contextmanager
def disk_for(disk: Disk | None) -> Iterator[None]:
    """Let the emulator's storage work with this disk."""
    if disk is None:
        yield
        return
    replacements: list[Replacement] = [
        (disk_log, "sync_data", disk.sync),
        (disk_log, "sync_folder", lambda _: None),
        (flusher, "ThreadPoolExecutor", lambda *_: _Executor(disk)),
    ]
    try:
        with replaced(replacements):
            yield
    finally:
        disk.remove()


def _memory() -> str | None:
    """Return a directory in memory, where there is one: no disk has to turn for a simulated one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
