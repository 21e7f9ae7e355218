"""A real PgBouncer in front of a Postgres, from Debian's package, installed if that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psycopg
import sqlalchemy as sa

from dualwrite.testing.network_proxy import NetworkProxy
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.debian_packages import install_packages
from tests.support.servers.ports import free_port

_START_TIMEOUT_S: Final = 30
_ADMIN: Final = "pgbouncer"
_PATH: Final = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
_USER: Final = "nobody"  # it refuses to run as root

# server_round_robin gives a client another server connection at each transaction.
_CONFIG: Final = """
[databases]
{database} = host=127.0.0.1 port={server_port} dbname={database} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
admin_users = {user}
pool_mode = {mode}
default_pool_size = {pool_size}
max_client_conn = 500
server_round_robin = 1
server_login_retry = 0.1
query_wait_timeout = 20
ignore_startup_parameters = extra_float_digits
logfile =
"""


def fetch_pgbouncer() -> Path:
    """Return the program, installed if needed.

    Raises ServerUnavailableError if the installation fails, ProgramMissingError if this process may not install.
    """
    found = shutil.which("pgbouncer", path=_PATH)
    if found is None:
        install_packages(("pgbouncer",), "there is no `pgbouncer` on the PATH")
        found = shutil.which("pgbouncer", path=_PATH)
    if found is None:
        raise ServerUnavailableError("Debian's package pgbouncer does not contain the program")
    return Path(found)


class PgBouncer:
    """A running PgBouncer in front of the database that `behind` names; `url` connects through it."""

    def __init__(self, behind: sa.URL, *, pool_size: int = 10, mode: str = "transaction") -> None:
        """Start it. Raises ServerUnavailableError if that fails."""
        program = fetch_pgbouncer()
        self._database = str(behind.database)
        self._server_side = NetworkProxy.for_database(behind)
        self._directory = tempfile.TemporaryDirectory(prefix="dualwrite-pgbouncer-")
        Path(self._directory.name).chmod(0o755)
        port = free_port()
        users = Path(self._directory.name) / "users.txt"
        users.write_text(f'"{behind.username}" ""\n')
        config = Path(self._directory.name) / "pgbouncer.ini"
        config.write_text(
            _CONFIG.format(
                database=self._database,
                server_port=self._server_side.port,
                user=behind.username,
                users=users,
                port=port,
                pool_size=pool_size,
                mode=mode,
            )
        )
        self.url = sa.URL.create("postgresql+psycopg", behind.username, None, "127.0.0.1", port, self._database)
        self._log = Path(self._directory.name) / "log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(program), *(["-u", _USER] if os.geteuid() == 0 else []), str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self.execute("SHOW VERSION")
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    raise ServerUnavailableError(f"pgbouncer did not start: {self._log.read_text()[-500:]}") from error
                time.sleep(0.05)

    def execute(self, command: str) -> None:
        """Run `command` on its admin console."""
        conninfo = self.url.set(drivername="postgresql", database=_ADMIN).render_as_string(hide_password=False)
        with psycopg.connect(conninfo, autocommit=True) as console:
            console.execute(command.encode())

    def cut(self) -> int:
        """Cut all its connections to Postgres now; return how many there were."""
        return self._server_side.cut()

    def kill_clients(self) -> None:
        """Drop all connections to clients and to Postgres, then accept new ones."""
        self.execute(f"KILL {self._database}")
        self.execute(f"RESUME {self._database}")

    def renew_connections(self) -> None:
        """Close each connection to Postgres when its transaction is over."""
        self.execute(f"RECONNECT {self._database}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._server_side.close()
        with suppress(OSError):
            self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
