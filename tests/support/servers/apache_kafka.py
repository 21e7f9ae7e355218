"""A real Apache Kafka on the loopback interface, one KRaft node or several, for tests that compare with it.

The broker's jars come from Maven Central through `mvn` and are kept in a cache directory; Java 17 runs them. No scripts
or configuration files of Kafka's distribution are needed. A start takes about three seconds.

    with ApacheKafka(two_phase_commit=True) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, ...})
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.cache import find_program
from tests.support.servers.kafka_classes import classes_options
from tests.support.servers.maven import dependency, fetched
from tests.support.servers.ports import free_port

KAFKA_VERSION = "4.4.0"
"""The newest release whose jars resolve. It follows the rules that the specification calls trunk."""

_HOST = "127.0.0.1"
_CLUSTER_ID = "ZHVhbHdyaXRlLXRlc3RzMA"  # any 16 bytes in URL-safe base64; no other node ever joins
_START_ATTEMPTS = 3  # another process may take a free port before Kafka binds it
_STOP_TIMEOUT_S = 10
_POLL_S = 0.05
_LOG_TAIL_LINES = 25
JVM_OPTIONS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""The JVM options for a quick start in little memory."""

# kafka-tools-api is left out: only the command line tools need it, and 4.4.0 was published without it.
_LEFT_OUT = ("org.apache.kafka:kafka-tools-api",)

_PROPERTIES: Mapping[str, str] = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.min.isr": "1",
    # creating fifty partitions of each takes longer than starting the broker
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    # otherwise the controller writes an empty record twice a second, which every broker reads, only for its metrics
    "metadata.max.idle.interval.ms": "0",
    # the default of 128 MiB is allocated on the heap when the broker starts
    "log.cleaner.dedupe.buffer.size": "4194304",
    # a killed broker may register again once its old session has expired at the controller, after 9 s by default
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
}

PLAIN_LISTENER: Mapping[str, str] = {"PLAINTEXT": "PLAINTEXT"}


class ApacheKafka:
    """An Apache Kafka cluster on free ports of 127.0.0.1. The first node is broker and controller, the others brokers.

    `two_phase_commit` makes it accept Enable2Pc (KIP-939), which needs the unstable API versions too; no release
    implements KeepPreparedTxn. `listeners` maps listener names to security protocols; the brokers use the first one
    among themselves, so it cannot have TLS. `scram_users` maps user names to passwords, for both SCRAM mechanisms.
    `properties` are broker settings by Kafka's names and override all others. The default `jvm_options` are for a quick
    start in little memory. Data and logs are in a temporary directory that `stop` removes. The processes end with this
    object or with this interpreter, at the latest.
    """

    def __init__(
        self,
        *,
        version: str = KAFKA_VERSION,
        nodes: int = 1,
        unstable_api_versions: bool = False,
        two_phase_commit: bool = False,
        listeners: Mapping[str, str] = PLAIN_LISTENER,
        scram_users: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = JVM_OPTIONS,
        start_timeout_s: float = 60,
    ) -> None:
        self.version = version
        self._node_count = nodes
        self._jvm_options = tuple(jvm_options)
        self._listeners = dict(listeners)
        self._scram_users = dict(scram_users or {})
        self._overrides = _switches(unstable_api_versions, two_phase_commit) | dict(properties or {})
        self._start_timeout_s = start_timeout_s
        self._cluster: _Cluster | None = None

    def start(self) -> Self:
        """Start the nodes that are not running and wait until they respond; a killed node keeps its data and ports.

        Raises ServerUnavailableError if they do not start.
        """
        deadline = time.monotonic() + self._start_timeout_s
        if self._cluster is not None:
            if not self._cluster.dead():
                raise RuntimeError("this Apache Kafka is already running")
            self._cluster.start(deadline)
            return self
        java = find_program("java", "a real Apache Kafka needs a Java 17 runtime")
        jars = fetch_kafka(self.version)
        command = [java, *self._jvm_options]
        if self._jvm_options == JVM_OPTIONS:
            command += classes_options(java, jars)
        for attempt in range(1, _START_ATTEMPTS + 1):
            cluster = _Cluster(command, jars, self._node_count, self._listeners, self._scram_users, self._overrides)
            try:
                cluster.format_storage(deadline)
                cluster.start(deadline)
            except _PortTakenError:
                cluster.stop()
                if attempt == _START_ATTEMPTS:
                    raise
            except BaseException:
                cluster.stop()
                raise
            else:
                self._cluster = cluster
                break
        return self

    def kill(self, node_id: int | None = None) -> None:
        """Kill a node (None: all of them) with SIGKILL, like a crash; `start` restarts it with its data and ports."""
        for node in self._running().nodes:
            if node_id in (None, node.node_id):
                node.kill()

    def stop(self) -> None:
        """End the processes and remove their data. Does nothing if none was started."""
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of each node's first listener, separated by commas."""
        return self.address(next(iter(self._listeners)))

    def address(self, listener: str) -> str:
        """Return `host:port` of each node's listener with this name, separated by commas."""
        return ",".join(f"{_HOST}:{node.ports[listener]}" for node in self._running().nodes)

    @property
    def pid(self) -> int:
        """The process id of the first node, for tests that suspend it."""
        return self._running().nodes[0].pid

    def pid_of(self, node_id: int) -> int:
        """Return the process id of a node."""
        return next(node.pid for node in self._running().nodes if node.node_id == node_id)

    @property
    def is_alive(self) -> bool:
        """Whether every node's process is running."""
        return not self._running().dead()

    @property
    def log_path(self) -> Path:
        """The first node's log."""
        return self._running().nodes[0].log_path

    def _running(self) -> _Cluster:
        if self._cluster is None:
            raise RuntimeError("this Apache Kafka has not been started")
        return self._cluster

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def fetch_kafka(version: str) -> Path:
    """Return the directory with all jars of Kafka `version`, fetched if needed."""
    return fetched(
        f"kafka-{version}",
        dependency(f"org.apache.kafka:kafka_2.13:{version}", without=_LEFT_OUT),
        dependency("org.slf4j:slf4j-simple:1.7.36"),
    )


def _switches(unstable_api_versions: bool, two_phase_commit: bool) -> dict[str, str]:
    return {
        "unstable.api.versions.enable": str(unstable_api_versions or two_phase_commit).lower(),
        "transaction.two.phase.commit.enable": str(two_phase_commit).lower(),
    }


class _PortTakenError(ServerUnavailableError):
    """Kafka's port was already in use."""


class _Cluster:
    """The nodes, and the directory with all their files."""

    def __init__(
        self,
        java: Sequence[str],
        jars: Path,
        count: int,
        listeners: Mapping[str, str],
        scram_users: Mapping[str, str],
        overrides: Mapping[str, str],
    ) -> None:
        directory = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        processes: dict[int, subprocess.Popen[bytes]] = {}
        self.stop = weakref.finalize(self, _end, directory, processes)  # also at the interpreter's exit
        copies = str(min(count, 3))
        shared = dict(_PROPERTIES) | {
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@{_HOST}:{free_port()}",
            "inter.broker.listener.name": next(iter(listeners)),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in [*listeners.items(), ("CONTROLLER", "PLAINTEXT")]
            ),
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
        }
        self._scram_users = scram_users
        self.nodes = [
            _Node(number, [*java, "-cp", f"{jars}/*"], directory, listeners, shared, overrides, processes)
            for number in range(1, count + 1)
        ]

    def format_storage(self, deadline: float) -> None:
        users = [
            f"{mechanism}=[name={name},password={password}]"
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for name, password in self._scram_users.items()
        ]
        formatting = [node.format_storage(users) for node in self.nodes]
        for process in formatting:
            try:
                written, _ = process.communicate(timeout=max(deadline - time.monotonic(), 1.0))
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise ServerUnavailableError("Kafka's storage was not formatted in time") from error
            if process.returncode != 0:
                raise ServerUnavailableError(f"Kafka's storage could not be formatted:\n{_tail(written)}")

    def dead(self) -> list[_Node]:
        """Return the nodes whose process is not running."""
        return [node for node in self.nodes if not node.is_alive]

    def start(self, deadline: float) -> None:
        """Start all nodes that are not running, at once, and wait until they respond."""
        starting = self.dead()
        for node in starting:
            node.start()
        for node in starting:
            node.wait_until_ready(deadline)


class _Node:
    """One node: its ports and data stay the same each time its process is started."""

    def __init__(
        self,
        node_id: int,
        java: Sequence[str],
        directory: Path,
        listeners: Mapping[str, str],
        shared: Mapping[str, str],
        overrides: Mapping[str, str],
        processes: dict[int, subprocess.Popen[bytes]],
    ) -> None:
        self.node_id = node_id
        self.ports = {name: free_port() for name in listeners}
        self._java = java
        self._directory = directory / f"node-{node_id}"
        self._directory.mkdir()
        self.log_path = self._directory / "kafka.log"
        self._output_path = self._directory / "kafka.out"
        self._settings_path = self._directory / "server.properties"
        self._settings_path.write_text(_render(self._settings(shared) | dict(overrides)))
        self._processes = processes

    def _settings(self, shared: Mapping[str, str]) -> dict[str, str]:
        own = ",".join(f"{name}://{_HOST}:{port}" for name, port in self.ports.items())
        is_controller = self.node_id == 1
        controller_address = shared["controller.quorum.voters"].removeprefix("1@")
        return dict(shared) | {
            "node.id": str(self.node_id),
            "process.roles": "broker,controller" if is_controller else "broker",
            "listeners": f"{own},CONTROLLER://{controller_address}" if is_controller else own,
            "advertised.listeners": own,
            "log.dirs": str(self._directory / "data"),
        }

    @property
    def pid(self) -> int:
        return self._processes[self.node_id].pid

    @property
    def is_alive(self) -> bool:
        process = self._processes.get(self.node_id)
        return process is not None and process.poll() is None

    def format_storage(self, scram_users: Sequence[str]) -> subprocess.Popen[str]:
        tool = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._settings_path)]
        for user in scram_users:
            tool += ["--add-scram", user]
        return subprocess.Popen(
            [*self._java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", *tool],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start(self) -> None:
        options = [f"-Dorg.slf4j.simpleLogger.logFile={self.log_path}", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        with self._output_path.open("wb") as output:
            self._processes[self.node_id] = subprocess.Popen(
                [*self._java, *options, "kafka.Kafka", str(self._settings_path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C ends the tests, and the tests end the broker
            )

    def kill(self) -> None:
        process = self._processes.get(self.node_id)
        if process is not None:
            process.kill()
            process.wait(_STOP_TIMEOUT_S)

    def wait_until_ready(self, deadline: float) -> None:
        process = self._processes[self.node_id]
        while not _responds(next(iter(self.ports.values()))):
            if process.poll() is not None:
                raise self._failure(f"Kafka exited with status {process.returncode} while it started")
            if time.monotonic() > deadline:
                raise self._failure("Kafka did not respond in time")
            time.sleep(_POLL_S)

    def _failure(self, what: str) -> ServerUnavailableError:
        written = "".join(
            path.read_text(errors="replace") for path in (self._output_path, self.log_path) if path.exists()
        )
        kind = _PortTakenError if "Address already in use" in written else ServerUnavailableError
        return kind(f"{what}; the end of its log:\n{_tail(written)}")


def _end(directory: Path, processes: dict[int, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        process.kill()  # its data is deleted next, so a clean shutdown would only take time
    for process in processes.values():
        process.wait(_STOP_TIMEOUT_S)
    shutil.rmtree(directory, ignore_errors=True)


def _render(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _tail(text: str) -> str:
    """Return the last lines without stack frames, which would push the reason out."""
    return "\n".join([line for line in text.splitlines() if not line.startswith("\tat ")][-_LOG_TAIL_LINES:])


def _responds(port: int) -> bool:
    """Return whether the broker responds to ApiVersions v0, which it does only once it has fully started."""
    client_id = b"probe"
    request = struct.pack(">hhih", 18, 0, 1, len(client_id)) + client_id
    try:
        with socket.create_connection((_HOST, port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            response = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(response) == 10 and struct.unpack(">iih", response)[1:] == (1, 0)
