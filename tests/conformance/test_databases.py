"""The conformance tests, as users run them, on every database that this machine can start."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.mariadb import MariaDbServer
from tests.support.servers.postgres_releases import RELEASES, start_postgres
from tests.support.unavailable import skip

pytestmark = pytest.mark.timeout(240)  # a process that starts others, on a busy machine

IN_PROCESS_ONLY = 18
"""The number of tests that SQLite skips: they need a socket to cut, row locks, or an isolation level."""

# A killed process leaves the same with every version; between the oldest and the newest, only locks and isolation
# levels are tested.
OPTIONS_OF = {max(RELEASES): (), min(RELEASES): ("-k", "not killed_process")}
_BETWEEN = ("-k", "test_row_lock or test_isolation")


def tell(url: sa.URL, *options: str) -> str:
    """Run the conformance tests; fail if one fails, and return their summary line."""
    command = [sys.executable, "-m", "dualwrite.testing.conformance", url.render_as_string(hide_password=False)]
    done = subprocess.run(
        [*command, "-q", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore", *options],
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def skipped(summary: str) -> int:
    found = re.search(r"(\d+) skipped", summary)
    return int(found[1]) if found else 0


@contextlib.contextmanager
def started(version: int) -> Iterator[sa.URL]:
    try:
        server = start_postgres(version)
    except ServerUnavailableError as error:
        skip(error)
    with server:
        server.spare_the_disk()
        yield server.create_database("conformance")


@pytest.mark.parametrize("version", RELEASES)
def test_postgres(version: int) -> None:
    with started(version) as url:
        with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
            assert str(connection.scalar(sa.text("SHOW server_version"))).startswith(f"{version}.")
        assert (
            skipped(tell(url, *OPTIONS_OF.get(version, _BETWEEN))) == 2
        )  # SNAPSHOT is not one of its isolation levels


def test_mariadb(mariadb_server: MariaDbServer) -> None:
    assert skipped(tell(mariadb_server.create_database("conformance"))) == 2  # as above


def test_sqlite(tmp_path: Path) -> None:
    assert skipped(tell(sa.make_url(f"sqlite:///{tmp_path}/conformance.db"))) == IN_PROCESS_ONLY


def test_help_shows_the_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dualwrite.testing.conformance"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--database-url" in done.stderr
