"""A Postgres that can be killed and restarted, and a synchronous standby that can take its place."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Self

import sqlalchemy as sa

from dualwrite.testing.postgres import find_system_binaries, unprivileged_user
from tests.support.conditions import until

_STANDBY: Final = "standby"
# Data written by a killed server is in the page cache; a commit that did not wait for the log writer is lost.
_CONFIGURATION: Final = """
listen_addresses = ''
fsync = off
wal_writer_delay = '10s'
wal_writer_flush_after = '1GB'
bgwriter_lru_maxpages = 0
autovacuum = off
hot_standby = on
shared_buffers = '16MB'
"""


class PostgresNode:
    """One server, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._binaries = find_system_binaries()
        self._user = unprivileged_user()
        self.directory = directory
        self.data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        query = {"host": str(directory)}
        self.url = sa.URL.create("postgresql+psycopg", "postgres", database="postgres", query=query)

    def initialise(self) -> None:
        """Make its empty databases."""
        self._new_directory()
        options = ("--auth=trust", "--username=postgres", "--encoding=utf8", "--no-sync")
        subprocess.run(
            [self._binaries / "initdb", *options, "-D", self.data],
            check=True,
            capture_output=True,
            user=self._user,
            cwd=self.directory,
        )
        self.configure(_CONFIGURATION)

    def copy(self, other: PostgresNode) -> None:
        """Begin as `other` is now, which must not run."""
        self._new_directory()
        shutil.copytree(other.data, self.data, symlinks=True)
        for path in (self.data, *self.data.rglob("*")):
            if self._user is not None:
                shutil.chown(path, self._user)

    def follow(self, primary: PostgresNode) -> None:
        """Be its standby, from the next start on; both must have begun as the same."""
        self.configure(
            f"primary_conninfo = 'host={primary.directory} user=postgres application_name={_STANDBY}'\n"
            "wal_retrieve_retry_interval = '20ms'\n"
        )
        signal_file = self.data / "standby.signal"
        signal_file.touch()
        if self._user is not None:
            shutil.chown(signal_file, self._user)

    def _new_directory(self) -> None:
        self.directory.mkdir()
        if self._user is not None:
            shutil.chown(self.directory, self._user)

    def configure(self, lines: str) -> None:
        """Add settings, for its next start."""
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write(lines)

    def start(self) -> None:
        """Return once it responds."""
        self._process = subprocess.Popen(
            [self._binaries / "postgres", "-D", self.data, "-k", self.directory],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            cwd=self.directory,
        )
        until(self._answers, 30)

    def _answers(self) -> bool:
        try:
            self.ask("SELECT 1")
        except sa.exc.OperationalError:
            return False
        return True

    def crash(self) -> None:
        """End it at once: unwritten data is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)
            self._process = None

    def promote(self) -> None:
        """Let a standby take its primary's place. It then waits for no standby."""
        self.ask("SELECT pg_promote()")
        until(lambda: not self.ask("SELECT pg_is_in_recovery()"))

    def ask(self, sql: str) -> object:
        """Return the one value of a statement, in a transaction of its own that waits for no standby."""
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql("SET synchronous_commit = 'local'")
            result = connection.exec_driver_sql(sql)
            return result.scalar() if result.returns_rows else None

    @property
    def waiting_backends(self) -> int:
        """How many commits wait for the standby."""
        found = self.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        assert isinstance(found, int)
        return found


def new_root() -> Path:
    """A directory for such servers, short enough for the names of their sockets."""
    root = Path(tempfile.mkdtemp(prefix="dualwrite-pair-"))
    user = unprivileged_user()
    if user is not None:
        shutil.chown(root, user)
    return root


class PostgresPair:
    """A primary whose commits wait for a standby; a test starts and stops that."""

    def __init__(self) -> None:
        self._root = new_root()
        self.primary = PostgresNode(self._root / "primary")
        self.standby = PostgresNode(self._root / "standby")

    def start(self, empty: PostgresNode) -> Self:
        """Both begin as `empty`."""
        self.primary.copy(empty)
        self.standby.copy(empty)
        self.standby.follow(self.primary)
        self.primary.configure(f"synchronous_standby_names = '{_STANDBY}'\n")
        self.primary.start()
        self.start_standby()
        return self

    def start_standby(self) -> None:
        """Return once commits need not wait any more."""
        self.standby.start()
        until(lambda: self.primary.ask("SELECT sync_state FROM pg_stat_replication") == "sync")

    def fail_over(self) -> PostgresNode:
        """Lose the primary for good; only the standby is left, whose process may be away."""
        self.primary.crash()
        self.standby.crash()
        self.standby.start()
        self.standby.promote()
        return self.standby

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.standby.crash()
        self.primary.crash()
        shutil.rmtree(self._root, ignore_errors=True)
