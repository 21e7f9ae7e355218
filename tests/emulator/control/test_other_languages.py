"""The shell of the docs, with an emulator in a process of its own; tests/examples/test_node_project.py has Node.js."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from dualwrite.broker_emulator.control.endpoints import ENDPOINTS
from dualwrite.producer import Producer
from tests.emulator.control.client import Client

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "emulator-control.md").read_text()


class EmulatorProcess:
    """`python -m dualwrite.broker_emulator`, with a control port."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "dualwrite.broker_emulator", "--topic", "orders:1"]
        command += ["--control", "127.0.0.1:0", "--clock", "virtual"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.bootstrap_servers = self._process.stdout.readline().strip()
        self.control_url = self._process.stdout.readline().strip()

    def stop(self) -> int:
        self._process.terminate()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait(60)


@pytest.fixture(scope="module")
def process() -> Iterator[EmulatorProcess]:
    process = EmulatorProcess()
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="module")
def committer(process: EmulatorProcess) -> Iterator[str]:
    """Serve a URL that commits a transaction at each GET, for languages without a Kafka client."""
    producer = Producer(bootstrap_servers=process.bootstrap_servers, transactional_id="orders-1")
    producer.init_transactions()

    class Commit(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            producer.begin_transaction()
            producer.send("orders", value=b"lamp", partition=0)
            producer.commit_transaction()
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Commit)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()
    producer.close()


def run(process: EmulatorProcess, *command: str) -> str:
    environment = {**os.environ, "CONTROL": process.control_url}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(language: str) -> str:
    (code,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(code)


@pytest.mark.skipif(None in map(shutil.which, ("bash", "curl", "jq")), reason="needs bash, curl and jq")
def test_the_shell_of_the_docs(process: EmulatorProcess, committer: str) -> None:
    control = Client(process.control_url)
    hold = control.post("/v1/holds", {"point": "before-marker"}, status=201)
    try:
        script = f"commit() {{ curl -sf {committer}; }}\n{example('bash')}"
        said = run(process, "bash", "-euo", "pipefail", "-c", script)
    finally:
        control.post(f"/v1/holds/{hold['hold_id']}/release")
    state, now_ms = said.splitlines()
    assert state == "orders-1\tPrepareCommit"
    assert now_ms.isdecimal()


def test_every_endpoint_is_in_the_table() -> None:
    named = set(re.findall(r"`(GET|POST|PUT|DELETE) ([^`?]+)(?:\?[^`]*)?`", PAGE))
    asked = {(each.method, each.template) for each in ENDPOINTS if each.template.startswith(("/v1/", "/metrics"))}
    assert named == asked
