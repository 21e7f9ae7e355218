"""The shell of the docs; tests/examples/test_node_project.py has Node.js."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from dualwrite.broker_emulator import Emulator, PausePoint, VirtualClock
from dualwrite.broker_emulator.control.endpoints import ENDPOINTS
from dualwrite.producer import Producer

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "emulator-control.md").read_text()


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(clock=VirtualClock(), control="127.0.0.1:0", topics={"orders": 1}) as running:
        yield running


@pytest.fixture
def committer(emulator: Emulator) -> Iterator[str]:
    """Serve a URL that commits a transaction at each GET, for languages without a Kafka client."""
    producer = Producer(bootstrap_servers=emulator.bootstrap_servers, transactional_id="orders-1")
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


@pytest.mark.skipif(None in map(shutil.which, ("bash", "curl", "jq")), reason="needs bash, curl and jq")
def test_the_shell_of_the_docs(emulator: Emulator, committer: str) -> None:
    (example,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    script = f"commit() {{ curl -sf {committer}; }}\n{example}"
    environment = {**os.environ, "CONTROL": emulator.control_url}
    held = emulator.hold(PausePoint.BEFORE_MARKER)
    try:
        said = subprocess.check_output(["bash", "-euo", "pipefail", "-c", script], text=True, env=environment)
    finally:
        held.release()
    state, now_ms = said.splitlines()
    assert state == "orders-1\tPrepareCommit"
    assert now_ms.isdecimal()


def test_every_endpoint_is_in_the_table() -> None:
    named = set(re.findall(r"`(GET|POST|PUT|DELETE) ([^`?]+)(?:\?[^`]*)?`", PAGE))
    asked = {(each.method, each.template) for each in ENDPOINTS if each.template.startswith(("/v1/", "/metrics"))}
    assert named == asked
