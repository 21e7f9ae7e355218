"""A real ZooKeeper on the loopback interface, for tests: jars from Maven Central, run by Java.

with ZooKeeperServer() as server:
    client = KazooClient(server.hosts)
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
import weakref
from pathlib import Path
from typing import Final, Self

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.cache import find_program
from tests.support.servers.maven import dependency, fetched
from tests.support.servers.ports import free_port

ZOOKEEPER_VERSION: Final = "3.9.3"

_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM_OPTIONS: Final = ("-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_START_TIMEOUT_S: Final = 60
_START_ATTEMPTS: Final = 3  # another process may take a free port before ZooKeeper binds it
_SETTINGS: Final = """\
tickTime=500
dataDir={directory}
clientPortAddress=127.0.0.1
clientPort={port}
admin.enableServer=false
4lw.commands.whitelist=ruok
"""


class ZooKeeperServer:
    """One standalone server. `stop` removes its data.

    Sessions expire after one second at the earliest. The process ends with this object or with this interpreter, at the
    latest.
    """

    def __init__(self) -> None:
        self.port = 0
        self._end: weakref.finalize[..., ZooKeeperServer] | None = None

    def start(self) -> Self:
        """Start it and wait until it responds. Raises ServerUnavailableError if it does not start."""
        java = find_program("java", "a real ZooKeeper needs a Java runtime")
        jars = fetch_zookeeper()
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._try_to_start(java, jars)
                break
            except ServerUnavailableError:
                self.stop()
                if attempt == _START_ATTEMPTS:
                    raise
        return self

    @property
    def hosts(self) -> str:
        """`host:port`, for `KazooClient`."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End the process and remove its data. Does nothing if none was started."""
        if self._end is not None:
            self._end()
            self._end = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _try_to_start(self, java: str, jars: Path) -> None:
        directory = Path(tempfile.mkdtemp(prefix="dualwrite-zookeeper-"))
        self.port = free_port()
        settings, log = directory / "zoo.cfg", directory / "log"
        settings.write_text(_SETTINGS.format(directory=directory, port=self.port))
        with log.open("wb") as output:
            process = subprocess.Popen(
                # a killed process loses nothing without forced disk writes, and the tests take much less time
                [java, *_JVM_OPTIONS, "-Dzookeeper.forceSync=no", "-cp", f"{jars}/*", _MAIN, str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._end = weakref.finalize(self, _stop, process, directory)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not _responds(self.port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                tail = " | ".join(log.read_text(errors="replace").splitlines()[-5:])
                raise ServerUnavailableError(f"ZooKeeper did not start: {tail}")
            time.sleep(0.05)


def fetch_zookeeper() -> Path:
    return fetched(
        f"zookeeper-{ZOOKEEPER_VERSION}",
        dependency(f"org.apache.zookeeper:zookeeper:{ZOOKEEPER_VERSION}", without=("ch.qos.logback:logback-classic",)),
        dependency("io.dropwizard.metrics:metrics-core:4.2.28"),  # with the next: in the server's distribution
        dependency("org.xerial.snappy:snappy-java:1.1.10.7"),
        dependency("org.slf4j:slf4j-simple:1.7.36"),
    )


def _responds(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"ruok")
            return connection.recv(4, socket.MSG_WAITALL) == b"imok"
    except OSError:
        return False


def _stop(process: subprocess.Popen[bytes], directory: Path) -> None:
    process.kill()  # its data is deleted next
    process.wait()
    shutil.rmtree(directory, ignore_errors=True)
