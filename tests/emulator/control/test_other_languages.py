"""Scenarios in other languages, including those of the docs, with an emulator in a process of its own."""

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


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"there is no {' and no '.join(missing)} here")


def run(process: EmulatorProcess, *command: str) -> str:
    environment = {**os.environ, "CONTROL": process.control_url}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(language: str) -> str:
    (code,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(code)


@needs("bash", "curl", "jq")
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


SCENARIO = """
import net from "node:net";
import assert from "node:assert";

async function control(method, path, body) {
  const answer = await fetch(process.env.CONTROL + path, {
    method,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return { status: answer.status, said: await answer.json() };
}

// ApiVersions v0 of the client "node", correlation id 7
const request = Buffer.from([0, 0, 0, 14, 0, 18, 0, 0, 0, 0, 0, 7, 0, 4, ...Buffer.from("node")]);

function connect(address) {
  const [host, port] = address.split(":");
  return new Promise((resolve) => { const socket = net.connect(Number(port), host, () => resolve(socket)); });
}

const { said: health } = await control("GET", "/v1/health");
const socket = await connect(health.bootstrap_servers);
let answered = Buffer.alloc(0);
socket.on("data", (data) => { answered = Buffer.concat([answered, data]); });

const misspelled = await control("POST", "/v1/faults", { api: "ApiVersion", action: { type: "Hold" } });
assert.equal(misspelled.status, 400);
assert.match(misspelled.said.error.message, /no API called 'ApiVersion'; did you mean/);

const hold = { api: "ApiVersions", client_id: "node", action: { type: "Hold" } };
const { said: fault } = await control("POST", "/v1/faults", hold);
socket.write(request);
const { said: held } = await control("GET", `/v1/faults/${fault.fault_id}/wait?held=1`);
assert.equal(held.hits, 1);
assert.equal(answered.length, 0);
const { said: connections } = await control("GET", "/v1/connections?client_id=node");
assert.equal(connections.total, 1);
await control("POST", `/v1/faults/${fault.fault_id}/release`);
await new Promise((resolve) => (answered.length ? resolve() : socket.once("data", resolve)));
assert.equal(answered.readInt32BE(4), 7);

await control("POST", "/v1/faults", { api: 18, client_id: "node", action: { type: "CloseBefore" } });
socket.on("error", () => {});
const closed = new Promise((resolve) => socket.once("close", resolve));
socket.write(request);
await closed;

await control("POST", "/v1/nodes/0/crash");
await assert.rejects(new Promise((resolve, reject) => {
  const [host, port] = health.bootstrap_servers.split(":");
  net.connect(Number(port), host, resolve).on("error", reject);
}));
assert.deepEqual((await control("GET", "/v1/health")).said.living_nodes, []);
await control("POST", "/v1/nodes/0/start");
(await connect(health.bootstrap_servers)).destroy();
assert.equal((await control("DELETE", "/v1/faults")).said.removed, 2);
console.log("done");
"""


@needs("node")
def test_a_scenario_of_faults_in_javascript(process: EmulatorProcess) -> None:
    """Hold, release, close, crash and restart without Python and without a Kafka client."""
    assert run(process, "node", "--input-type=module", "-e", SCENARIO) == "done\n"


def test_everything_that_can_be_asked_is_in_the_table() -> None:
    named = set(re.findall(r"`(GET|POST|PUT|DELETE) ([^`?]+)(?:\?[^`]*)?`", PAGE))
    asked = {(each.method, each.template) for each in ENDPOINTS if each.template.startswith(("/v1/", "/metrics"))}
    assert named == asked
