"""examples/broker_service: the commands of the unit and of the container start, on addresses of the test."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "examples" / "broker_service"
DEADLINE_S = 60


def command_of_the_unit() -> list[str]:
    unit = (SERVICE / "dualwrite-broker.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    return shlex.split(command)


def command_of_the_container() -> list[str]:
    text = (SERVICE / "Containerfile").read_text()
    return [
        word for name in ("ENTRYPOINT", "CMD") for word in json.loads(re.findall(rf"^{name} (\[.*\])$", text, re.M)[0])
    ]


class Service:
    """A process started by `command`, with paths and addresses of the test."""

    def __init__(self, command: list[str], directory: Path) -> None:
        properties = (SERVICE / "server.properties").read_text()
        properties = re.sub(r"^(listeners=PLAINTEXT://).*$", r"\g<1>127.0.0.1:0", properties, flags=re.MULTILINE)
        (directory / "server.properties").write_text(re.sub(r"^advertised.*$", "", properties, flags=re.MULTILINE))
        places = {"--config": directory / "server.properties", "--data-dir": directory / "data"}
        words = [sys.executable, *command[1:]]
        for option, place in places.items():
            words[words.index(option) + 1] = str(place)
        words[words.index("--control") + 1] = "127.0.0.1:0"
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.settimeout(DEADLINE_S)
        self._manager.bind(str(directory / "notify"))
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            text=True,
            env={"NOTIFY_SOCKET": str(directory / "notify"), "PATH": ""},
            cwd=ROOT,
        )

    def said(self) -> bytes:
        return self._manager.recv(100)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._manager.close()


@pytest.fixture(params=[command_of_the_unit, command_of_the_container], ids=["unit", "container"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    made = Service(request.param(), tmp_path)
    yield made
    made.close()


def test_the_service_reports_readiness_and_stops_in_order(service: Service, tmp_path: Path) -> None:
    assert service.said() == b"READY=1"
    assert service.process.stdout is not None
    address, control = (service.process.stdout.readline().strip() for _ in range(2))
    host, port = address.split(":")
    socket.create_connection((host, int(port)), timeout=DEADLINE_S).close()
    with urllib.request.urlopen(f"{control}/v1/health", timeout=DEADLINE_S) as answer:  # as HEALTHCHECK does
        assert answer.status == 200
    service.process.terminate()
    assert service.said() == b"STOPPING=1"
    assert service.process.wait(DEADLINE_S) == 0
    assert (tmp_path / "data" / ".clean-shutdown").exists()


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze on the PATH")
    unit = (SERVICE / "dualwrite-broker.service").read_text().replace(command_of_the_unit()[0], sys.executable)
    (tmp_path / "dualwrite-broker.service").write_text(unit)
    done = subprocess.run(
        [verify, "verify", str(tmp_path / "dualwrite-broker.service")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_container_has_every_file_that_it_copies() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*)$", (SERVICE / "Containerfile").read_text(), re.MULTILINE)
    for words in copied:
        for name in words.split()[:-1]:
            assert (ROOT / name).exists(), name


def test_control_is_published_on_this_machine_only() -> None:
    commands = re.findall(r"podman run .*", (SERVICE / "Containerfile").read_text())
    assert commands
    assert all("-p 127.0.0.1:9644:9644" in command and "-p 9644" not in command for command in commands)
