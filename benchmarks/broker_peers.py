"""Start the brokers that `benchmarks.broker` compares, each in a process of its own on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from compileall import compile_dir
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.librdkafka_mock import PARTITIONS, library_path
from dualwrite import broker_emulator
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.apache_kafka import ApacheKafka

EMULATOR = "emulator"
LIBRDKAFKA_MOCK = "librdkafka mock"
KFAKE = "kfake"
APACHE_KAFKA = "Apache Kafka"

TOPICS = ("transactions", "small", "bulk")
"""The topics, each with `PARTITIONS` partitions."""

_START_TIMEOUT_S = 60.0
_KFAKE_SOURCE = Path(__file__).parent / "kfake"
# The options of Kafka's own start script; those of the tests are for a quick start, not for throughput.
_KAFKA_JVM_OPTIONS = ("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class PeerMissingError(Exception):
    """This machine cannot run the peer, for the reason in the message."""


@dataclass(frozen=True)
class RunningBroker:
    """A broker that responds to requests."""

    bootstrap_servers: str
    pid: int
    start_s: float
    """Time from starting its process to its first response."""

    def resident_mb(self) -> float:
        """Return the resident memory, in MB of a million bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far, by all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@contextmanager
def emulator(*options: str) -> Iterator[RunningBroker]:
    # as pip does at installation; Python itself may not write bytecode here (PYTHONDONTWRITEBYTECODE)
    compile_dir(Path(broker_emulator.__file__).parent, quiet=2)
    topics = [option for topic in TOPICS for option in ("--topic", f"{topic}:{PARTITIONS}")]
    with _process([sys.executable, "-m", "dualwrite.broker_emulator", *topics, *options]) as broker:
        yield broker


@contextmanager
def librdkafka_mock() -> Iterator[RunningBroker]:
    try:
        library_path()
    except FileNotFoundError as error:
        raise PeerMissingError(str(error)) from error
    with _process([sys.executable, "-m", "benchmarks.librdkafka_mock", *TOPICS]) as broker:
        yield broker


@contextmanager
def kfake() -> Iterator[RunningBroker]:
    go = shutil.which("go")
    if go is None:
        raise PeerMissingError("kfake is written in Go, and there is no `go` on the PATH")
    with tempfile.TemporaryDirectory(prefix="kfake-") as directory:
        program = Path(directory, "kfake")
        built = subprocess.run(
            [go, "build", "-o", str(program), "."], cwd=_KFAKE_SOURCE, capture_output=True, text=True, check=False
        )
        if built.returncode != 0:
            raise PeerMissingError(f"kfake could not be built: {built.stderr.strip().splitlines()[-1]}")
        with _process([str(program), *TOPICS]) as broker:
            yield broker


@contextmanager
def apache_kafka() -> Iterator[RunningBroker]:
    kafka = ApacheKafka(jvm_options=_KAFKA_JVM_OPTIONS, properties={"num.partitions": str(PARTITIONS)})
    start_s = time.perf_counter()
    try:
        kafka.start()
    except ServerUnavailableError as error:
        raise PeerMissingError(str(error).splitlines()[0]) from error
    try:
        yield RunningBroker(kafka.bootstrap_servers, kafka.pid, time.perf_counter() - start_s)
    finally:
        kafka.stop()


PEERS: dict[str, Callable[[], AbstractContextManager[RunningBroker]]] = {
    EMULATOR: emulator,
    LIBRDKAFKA_MOCK: librdkafka_mock,
    KFAKE: kfake,
    APACHE_KAFKA: apache_kafka,
}


@contextmanager
def _process(command: list[str]) -> Iterator[RunningBroker]:
    """Run a broker that prints its address; it ends on SIGTERM or with its standard input."""
    started_s = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"{command} ended with exit status {process.wait(10)}")
        wait_for_response(address)
        yield RunningBroker(address, process.pid, time.perf_counter() - started_s)
    finally:
        process.terminate()
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


def wait_for_response(address: str) -> None:
    """Wait until the broker responds to an ApiVersions v0 request."""
    host, _, port = address.rpartition(":")
    request = struct.pack(">hhih", 18, 0, 1, 5) + b"probe"
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=1) as connection:
                connection.sendall(struct.pack(">i", len(request)) + request)
                if len(connection.recv(10, socket.MSG_WAITALL)) == 10:
                    return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
