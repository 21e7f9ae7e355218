"""Files on disk: written atomically, synced, and kept open within the process's limit of descriptors."""

from __future__ import annotations

import errno
import os
import resource
from collections import OrderedDict
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


def write_atomically(path: Path, data: bytes, *, sync: bool, mode: int | None = None) -> None:
    """Create or replace a file: after a crash, it is complete or as before. Raises OSError, without any change."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with temporary.open("wb") as file:
            if mode is not None:  # before the file has contents
                os.fchmod(file.fileno(), mode)
            file.write(data)
            if sync:
                file.flush()
                os.fdatasync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def sync_data(path: Path) -> None:
    """Sync the data of a file to disk; a file that was deleted is ignored. Raises OSError.

    The file is opened just for this, so that syncing many files holds one descriptor at a time.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- open files ----------------------------------------------------------------------------------------------------

_MOST = 256


def _default_limit() -> int:
    """Return a quarter of the process's descriptors; the others are for connections."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if allowed == resource.RLIM_INFINITY else max(min(allowed // 4, _MOST), 1)


class OpenFiles:
    """A cache of open descriptors by path; the least recently used one is closed to make room."""

    __slots__ = ("_descriptors", "_limit")

    def __init__(self, limit: int | None = None) -> None:
        self._descriptors: OrderedDict[Path, int] = OrderedDict()
        self._limit = _default_limit() if limit is None else limit

    def get(self, path: Path) -> int:
        """Return a descriptor for reading and writing an existing file. Raises OSError."""
        return self._get(path, 0)

    def get_or_create(self, path: Path) -> int:
        """Return a descriptor as `get` does, creating file and folder if they do not exist."""
        try:
            return self._get(path, os.O_CREAT)
        except FileNotFoundError:
            path.parent.mkdir(exist_ok=True)
            return self._get(path, os.O_CREAT)

    def _get(self, path: Path, flags: int) -> int:
        descriptor = self._descriptors.get(path)
        if descriptor is not None:
            self._descriptors.move_to_end(path)
            return descriptor
        descriptor = self._open(path, flags)
        self._descriptors[path] = descriptor
        if len(self._descriptors) > self._limit:
            self._close_oldest()
        return descriptor

    def _open(self, path: Path, flags: int) -> int:
        while True:
            try:
                return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._descriptors:
                    raise
                self._close_oldest()  # connections may have taken all other descriptors of the process

    def _close_oldest(self) -> None:
        os.close(self._descriptors.popitem(last=False)[1])

    def close(self, path: Path) -> None:
        """Close a file, if it is open."""
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_folder(self, folder: Path) -> None:
        """Close every open file in a folder."""
        for path in [path for path in self._descriptors if path.parent == folder]:
            self.close(path)

    def close_all(self) -> None:
        """Close every file."""
        for path in list(self._descriptors):
            self.close(path)

    def __del__(self) -> None:
        """Close every file: tests drop logs without closing them, as a crash would, and descriptors are limited."""
        self.close_all()
