"""A real Apache Kafka, one KRaft node on loopback, for tests that compare with it.

The broker comes as jars from Maven Central, through `mvn`, and is kept in a cache directory; Java 17 runs it.
Nothing of Kafka's distribution (scripts, configuration files) is needed. A start takes about three seconds.

    with ApacheKafka(two_phase_commit=True) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, ...})
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from dualwrite.testing.server_unavailable import ServerUnavailableError

KAFKA_VERSION = "4.4.0"
"""The newest release whose jars resolve. Its rules are those the specification calls trunk."""

CACHE_VARIABLE = "DUALWRITE_JARS_DIR"
"""Environment variable: where downloaded jars are kept; default `$XDG_CACHE_HOME/dualwrite/jars`."""

_HOST = "127.0.0.1"
_CLUSTER_ID = "ZHVhbHdyaXRlLXRlc3RzMA"  # any 16 bytes in URL-safe base64; nothing else ever joins
_FIRST_PORT, _LAST_PORT = 15000, 32000  # below the range from which systems take ports of outgoing connections
_START_ATTEMPTS = 3  # a free port may be taken by somebody else before Kafka binds it
_MAVEN_TIMEOUT_S = 300
_STOP_TIMEOUT_S = 10
_POLL_S = 0.05
_LOG_TAIL_LINES = 25
_JVM_OPTIONS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

# kafka-tools-api is left out: only the command line tools need it, and 4.4.0 was published without it.
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dualwrite</groupId><artifactId>apache-kafka-for-tests</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version>
      <exclusions>
        <exclusion><groupId>org.apache.kafka</groupId><artifactId>kafka-tools-api</artifactId></exclusion>
      </exclusions>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

_PROPERTIES: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # creating fifty partitions of each takes longer than starting the broker
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    # the default of 128 MiB is taken from the heap when the broker starts
    "log.cleaner.dedupe.buffer.size": "4194304",
}


class ApacheKafka:
    """One Apache Kafka node (KRaft, broker and controller in one process), on free ports of 127.0.0.1.

    `two_phase_commit` makes it accept Enable2Pc (KIP-939), which needs the unstable API versions too; no release
    implements KeepPreparedTxn. `properties` are broker settings by Kafka's names and win over everything else.
    `jvm_options` are for a quick start in little memory unless given.
    Data and logs live in a temporary directory that `stop` removes. The process ends with this object,
    or with this interpreter, at the latest.
    """

    def __init__(
        self,
        *,
        version: str = KAFKA_VERSION,
        unstable_api_versions: bool = False,
        two_phase_commit: bool = False,
        properties: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = _JVM_OPTIONS,
        start_timeout_s: float = 60,
    ) -> None:
        self.version = version
        self._jvm_options = tuple(jvm_options)
        self._overrides = _switches(unstable_api_versions, two_phase_commit) | dict(properties or {})
        self._start_timeout_s = start_timeout_s
        self._server: _Server | None = None

    def start(self) -> Self:
        """Start the broker and wait until it answers. Raises ServerUnavailableError when that cannot be."""
        if self._server is not None:
            raise RuntimeError("this Apache Kafka runs already")
        java = _find_program("java", "a Java 17 runtime")
        jars = resolve_jars(self.version)
        deadline = time.monotonic() + self._start_timeout_s
        for attempt in range(1, _START_ATTEMPTS + 1):
            server = _Server([java, *self._jvm_options], jars, self._overrides)
            try:
                server.start(deadline)
            except _PortTakenError:
                server.stop()
                if attempt == _START_ATTEMPTS:
                    raise
            except BaseException:
                server.stop()
                raise
            else:
                self._server = server
                break
        return self

    def stop(self) -> None:
        """End the broker's process and remove its data; harmless when it does not run."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the running broker."""
        return f"{_HOST}:{self._running().port}"

    @property
    def pid(self) -> int:
        """Process id of the running broker, for tests that kill or suspend it."""
        return self._running().pid

    @property
    def log_path(self) -> Path:
        """The running broker's log."""
        return self._running().log_path

    def _running(self) -> _Server:
        if self._server is None:
            raise RuntimeError("this Apache Kafka has not been started")
        return self._server

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def resolve_jars(version: str) -> Path:
    """The directory with everything that Kafka `version` needs at run time; filled by `mvn` at the first call.

    Raises ServerUnavailableError when Maven is missing or cannot fetch the jars.
    """
    target = _cache_directory() / f"kafka-{version}"
    if target.is_dir():
        return target
    maven = _find_program("mvn", "Maven")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".incomplete-") as work:
        pom = Path(work, "pom.xml")
        pom.write_text(_POM.format(version=version))
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={work}/jars"]
        _run_maven([maven, "-B", "-q", "-Dstyle.color=never", "-f", str(pom), *goal])
        with contextlib.suppress(FileExistsError):  # somebody else was faster; theirs is as good
            _move_into_place(Path(work, "jars"), target)
    return target


def _move_into_place(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if not target.is_dir():
            raise
        raise FileExistsError(target) from error


def _run_maven(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MAVEN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailableError(f"Maven did not fetch Kafka's jars within {_MAVEN_TIMEOUT_S} s") from error
    if done.returncode != 0:
        reasons = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line] or ["no reason given"]
        raise ServerUnavailableError(f"Maven could not fetch Kafka's jars: {reasons[0]}")


def _cache_directory() -> Path:
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualwrite" / "jars"


def _find_program(name: str, meaning: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ServerUnavailableError(f"a real Apache Kafka needs {meaning}, and there is no `{name}` on the PATH")
    return path


def _switches(unstable_api_versions: bool, two_phase_commit: bool) -> dict[str, str]:
    return {
        "unstable.api.versions.enable": str(unstable_api_versions or two_phase_commit).lower(),
        "transaction.two.phase.commit.enable": str(two_phase_commit).lower(),
    }


class _PortTakenError(ServerUnavailableError):
    """Kafka found its port in use."""


class _Server:
    """One process with its directory and its ports."""

    def __init__(self, java: Sequence[str], jars: Path, overrides: Mapping[str, str]) -> None:
        self._java = java
        self._class_path = f"{jars}/*"
        self._directory = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        self.port, controller_port = _free_port(), _free_port()
        self.log_path = self._directory / "kafka.log"
        self._settings_path = self._directory / "server.properties"
        self._settings_path.write_text(_render(self._settings(controller_port) | dict(overrides)))
        self._processes: list[subprocess.Popen[bytes]] = []
        self.stop = weakref.finalize(self, _end, self._directory, self._processes)  # at exit of the interpreter, too

    @property
    def pid(self) -> int:
        return self._processes[0].pid

    def start(self, deadline: float) -> None:
        self._format_storage(deadline)
        options = [f"-Dorg.slf4j.simpleLogger.logFile={self.log_path}", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        with Path(self._directory, "kafka.out").open("wb") as output:
            process = subprocess.Popen(
                [*self._java, *options, "-cp", self._class_path, "kafka.Kafka", str(self._settings_path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt typed at the terminal ends the tests, and they end the broker
            )
        self._processes.append(process)
        self._wait_until_it_answers(process, deadline)

    def _settings(self, controller_port: int) -> dict[str, str]:
        return dict(_PROPERTIES) | {
            "listeners": f"PLAINTEXT://{_HOST}:{self.port},CONTROLLER://{_HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{_HOST}:{self.port}",
            "controller.quorum.voters": f"1@{_HOST}:{controller_port}",
            "log.dirs": str(self._directory / "data"),
        }

    def _format_storage(self, deadline: float) -> None:
        tool = ["-cp", self._class_path, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID]
        command = [*self._java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", *tool, "-c", str(self._settings_path)]
        timeout_s = max(deadline - time.monotonic(), 1.0)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise ServerUnavailableError("Kafka's storage was not formatted in time") from error
        if done.returncode != 0:
            raise ServerUnavailableError(f"Kafka's storage could not be formatted:\n{_tail(done.stdout + done.stderr)}")

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        while not _answers(self.port):
            if process.poll() is not None:
                raise self._failure(f"Kafka ended with exit status {process.returncode} while it started")
            if time.monotonic() > deadline:
                raise self._failure("Kafka did not answer in time")
            time.sleep(_POLL_S)

    def _failure(self, what: str) -> ServerUnavailableError:
        written = "".join(
            path.read_text(errors="replace") for path in (self._directory / "kafka.out", self.log_path) if path.exists()
        )
        kind = _PortTakenError if "Address already in use" in written else ServerUnavailableError
        return kind(f"{what}; the end of its log:\n{_tail(written)}")


def _end(directory: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()  # nothing on its disk is wanted any more, so a clean shutdown would only take time
        process.wait(_STOP_TIMEOUT_S)
    shutil.rmtree(directory, ignore_errors=True)


def _render(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _tail(text: str) -> str:
    """The last lines, without the frames of stack traces, which would push the reason out."""
    return "\n".join([line for line in text.splitlines() if not line.startswith("\tat ")][-_LOG_TAIL_LINES:])


def _free_port() -> int:
    for port in random.sample(range(_FIRST_PORT, _LAST_PORT), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((_HOST, port))
            return port
    raise ServerUnavailableError(f"no free port between {_FIRST_PORT} and {_LAST_PORT}")


def _answers(port: int) -> bool:
    """Whether an ApiVersions v0 request is answered; the broker holds answers back until it is fully started."""
    client_id = b"probe"
    request = struct.pack(">hhih", 18, 0, 1, len(client_id)) + client_id
    try:
        with socket.create_connection((_HOST, port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == 10 and struct.unpack(">iih", answer)[1:] == (1, 0)
