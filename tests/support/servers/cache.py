"""A cache for the jars, servers and programs that tests fetch or build once, each in its own directory."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.servers.required import ProgramMissingError

CACHE_VARIABLE: Final = "DUALWRITE_JARS_DIR"
"""The environment variable that names the cache directory; the default is `$XDG_CACHE_HOME/dualwrite/jars`."""


def cached(name: str, fill: Callable[[Path], Path]) -> Path:
    """Return the directory `name` in the cache; if it is missing, `fill` first creates it in a given work directory.

    Only one process fills the cache at a time. If `fill` raises, nothing stays behind.
    """
    target = cache_directory() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(target.parent), tempfile.TemporaryDirectory(dir=target.parent, prefix=".incomplete-") as work:
        if not target.is_dir():
            _move_into_place(fill(Path(work)), target)
    return target


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Let one process in at a time: several cannot fill Maven's own repository at once."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _move_into_place(source: Path, target: Path) -> None:
    source.chmod(0o755)  # a server that refuses to run as root runs under another account
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():  # otherwise another process was faster, and its copy is as good
            raise


def find_program(name: str, why: str) -> str:
    """Return the path of the program `name`. Raises ProgramMissingError, whose message begins with `why`."""
    path = shutil.which(name)
    if path is None:
        raise ProgramMissingError(f"{why}, and there is no `{name}` on the PATH")
    return path


def cache_directory() -> Path:
    """Return the cache's directory, which may not exist yet."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualwrite" / "jars"
