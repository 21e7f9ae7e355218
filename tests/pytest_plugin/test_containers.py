"""The container of Testcontainers, with an engine of our own: no Docker is needed, and none is tried.

The engine runs the container's command, with the same arguments and files, as a process of this machine; the tasks of a
real engine (images, networks, mapped ports, removal after a kill) are not tested here.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.servers.ports import free_port

containers = pytest.importorskip("dualwrite.testing.containers", reason="testcontainers is not installed")

ROOT = Path(__file__).parents[2]


class LocalContainer:
    """A container that is a process: ports and the paths of the image are replaced by those of this machine."""

    id = short_id = "fake"

    def __init__(self, directory: Path, ports: dict[int, int], entrypoint: list[str], command: list[str]) -> None:
        self.directory = directory
        self.ports = ports
        self.command = [self._here(part) for part in [*entrypoint, *command]]
        self.process: subprocess.Popen[bytes] | None = None
        self.is_removed = False

    def _here(self, text: str) -> str:
        # The interpreter last: it may itself lie below /tmp, as in a checkout there.
        text = text.replace("/tmp/", f"{self.directory}/").replace("/opt/dualwrite/bin/python", sys.executable)
        for inside, outside in self.ports.items():
            text = text.replace(f"0.0.0.0:{inside}", f"127.0.0.1:{outside}")
        return text

    @property
    def status(self) -> str:
        return "running" if self.process is not None and self.process.poll() is None else "exited"

    def start(self) -> None:
        with (self.directory / "log").open("wb") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)

    def put_archive(self, path: str, data: bytes) -> bool:
        assert path == "/tmp"
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # of Python 3.11.4 and later
            archive.extractall(self.directory)
        return True

    def logs(self, *, stdout: bool = True, stderr: bool = True) -> bytes:
        return (self.directory / "log").read_bytes() if stdout else b""

    def reload(self) -> None:
        pass

    def remove(self, **_: object) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.is_removed = True


class Engine:
    """The calls of Docker's client that testcontainers needs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.made: list[LocalContainer] = []
        self.images = SimpleNamespace(get=lambda image: image)
        self.containers = SimpleNamespace(create=self._create, get=lambda _: self.made[-1])
        self.networks = SimpleNamespace(list=lambda **_: [])
        self.api = SimpleNamespace(headers={}, base_url="http+docker://localhost", port=self._port)

    def _create(self, image: str, *, command: list[str], ports: dict[Any, Any], entrypoint: list[str], **_: Any) -> Any:
        assert image == "dualwrite-broker:latest"
        numbers = {int(str(port).partition("/")[0]): free_port() for port in ports}
        self.made.append(LocalContainer(self.directory, numbers, entrypoint, command))
        return self.made[-1]

    def _port(self, _: str, port: int) -> list[dict[str, str]]:
        return [{"HostPort": str(self.made[-1].ports[port])}]

    def close(self) -> None:
        pass


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:

    from testcontainers.core.config import ConnectionMode, testcontainers_config

    engine = Engine(tmp_path)
    monkeypatch.setattr("docker.from_env", lambda **_: engine)
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
    monkeypatch.setattr(testcontainers_config, "tc_host_override", "127.0.0.1")
    monkeypatch.setattr(testcontainers_config, "connection_mode_override", ConnectionMode.docker_host)
    yield engine
    assert [each.is_removed for each in engine.made] == [True] * len(engine.made)


def test_a_container_serves_and_is_controlled(engine: Engine) -> None:
    made = containers.DualwriteBrokerContainer().with_topic("orders", 2).with_virtual_clock()
    with made.with_broker_config("num.partitions", "4") as broker:
        control = broker.control
        servers = broker.get_bootstrap_server()
        assert control.request("GET", "/v1/health")["bootstrap_servers"] == servers  # the clients' address
        assert control.request("GET", "/v1/config")["settings"]["num.partitions"] == 4
        producer = Producer({"bootstrap.servers": servers})
        lost = control.add_fault({"api": "Produce", "action": {"type": "CloseBefore"}})
        producer.produce("orders", b"lamp\xff", b"7", partition=1, headers={"by": b"shop"})
        assert producer.flush(60) == 0
        control.wait_for_fault(lost)
        (record,) = control.records("orders", 1)
        assert (record.key, record.value, record.headers) == (b"7", b"lamp\xff", (("by", b"shop"),))
        assert control.records("never-used") == []
        before = control.request("GET", "/v1/clock")["now_ms"]
        control.advance_clock(60_000)
        assert control.request("GET", "/v1/clock")["now_ms"] == before + 60_000
        control.reset()
        assert control.records("orders") == []
        with pytest.raises(containers.ControlClientError, match="no API called 'EndTx'") as refused:
            control.add_fault({"api": "EndTx"})
        assert refused.value.code == "bad-request"


def test_a_broker_that_does_not_start_is_reported_with_its_log_and_removed(engine: Engine) -> None:
    broken = containers.DualwriteBrokerContainer().with_broker_config("num.partitions", "0")
    with pytest.raises(containers.BrokerContainerError, match=r"ended before it served.*num\.partitions"):
        broken.start()
