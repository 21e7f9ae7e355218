"""Files that are kept open, and not more of them than a process may have."""

from __future__ import annotations

import errno
import os
import resource
from collections import OrderedDict
from pathlib import Path

_MOST = 256


def _default_limit() -> int:
    """A quarter of what the process may have: the others are for connections."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if allowed == resource.RLIM_INFINITY else max(min(allowed // 4, _MOST), 1)


class OpenFiles:
    """Descriptors by path; the one that was not used for the longest time is closed for a new one."""

    __slots__ = ("_descriptors", "_limit")

    def __init__(self, limit: int | None = None) -> None:
        self._descriptors: OrderedDict[Path, int] = OrderedDict()
        self._limit = _default_limit() if limit is None else limit

    def get(self, path: Path) -> int:
        """A descriptor for reading and writing of a file that is there. Raises OSError."""
        return self._get(path, 0)

    def get_or_create(self, path: Path) -> int:
        """As `get`; file and folder are created where there are none."""
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
                self._close_oldest()  # connections may have taken all the others that the process may have

    def _close_oldest(self) -> None:
        os.close(self._descriptors.popitem(last=False)[1])

    def close(self, path: Path) -> None:
        """Close a file; harmless when it is not open."""
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        """Close every file."""
        for path in list(self._descriptors):
            self.close(path)

    def __del__(self) -> None:
        """A log may be dropped as a crash would leave it; a process has only so many descriptors."""
        self.close_all()
