"""What tests fetch or build once and keep: jars, servers, programs, each in a directory of its own."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dualwrite.testing.server_unavailable import ProgramMissingError

CACHE_VARIABLE: Final = "DUALWRITE_JARS_DIR"
"""Environment variable: where what was fetched is kept; default `$XDG_CACHE_HOME/dualwrite/jars`."""


def cached(name: str, fill: Callable[[Path], Path]) -> Path:
    """The directory `name` in the cache. Where it is missing, `fill` makes it inside the directory that it is given.

    One process fills at a time; what `fill` raises leaves nothing behind.
    """
    target = cache_directory() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.parent), tempfile.TemporaryDirectory(dir=target.parent, prefix=".incomplete-") as work:
        if not target.is_dir():
            _move_into_place(fill(Path(work)), target)
    return target


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One process at a time: Maven's own repository cannot be filled by several at once."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _move_into_place(source: Path, target: Path) -> None:
    source.chmod(0o755)  # a server that refuses to run as root is run by somebody else
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():  # else somebody was faster; theirs is as good
            raise


def find_program(name: str, why: str) -> str:
    """Where `name` is. Raises ProgramMissingError, with `why` it is needed."""
    path = shutil.which(name)
    if path is None:
        raise ProgramMissingError(f"{why}, and there is no `{name}` on the PATH")
    return path


def cache_directory() -> Path:
    """Where what was fetched is kept."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualwrite" / "jars"
