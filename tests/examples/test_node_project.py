"""examples/node_project with the packed npm package, as a project that is empty but for them."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.conditions import until
from tests.support.servers.cache import find_program
from tests.support.unavailable import skip

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dualwrite" / "testing" / "clients" / "node"

TYPED = """
import { BrokerError, connectBroker, startBroker } from "dualwrite-broker";
import type { Broker, BrokerRecord, Fault, FaultState, Hold, HoldState } from "dualwrite-broker";

export async function suite(): Promise<string[]> {
  const broker: Broker = await startBroker({ topics: { orders: 3 }, nodes: 1, clock: "virtual", startTimeoutMs: 9000 });
  try {
    const lost: Fault = await broker.addFault({ api: "EndTxn", action: { type: "DropReply" }, count: null });
    const state: FaultState = await lost.wait({ hits: 1, timeoutMs: 5000 });
    const held: Hold = await broker.hold("before-marker", { partition: 0 });
    const stopped: HoldState = await held.wait();
    await held.release();
    await lost.remove();
    const later: number = (await broker.advanceClock(70_000)) - (await broker.now());
    await broker.createTopic("invoices", { partitions: 1, configs: null });
    const records: BrokerRecord[] = await broker.records("orders", { readCommitted: false, partition: 0, offset: 0 });
    await broker.reset();
    const other: Broker = await connectBroker(broker.controlUrl);
    await other.request("GET", "/health");
    const values = records.map((record) => record.value?.toString() ?? String(record.transaction));
    return [...values, broker.bootstrapServers, String(state.held + stopped.waiting + later)];
  } catch (error) {
    if (error instanceof BrokerError) return [error.code, ...error.known, String(error.status)];
    throw error;
  } finally {
    await broker.stop();
  }
}
"""
"""A suite in TypeScript that uses every declaration of the package."""


@pytest.fixture
def npm() -> str:
    try:
        return find_program("npm", "the example in Node is installed by npm")
    except ServerUnavailableError as error:
        skip(error)


def run(*command: str, directory: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment["DUALWRITE_BROKER_COMMAND"] = f"{sys.executable} -m dualwrite.broker_emulator"
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(npm: str, *others: str, directory: Path) -> None:
    """Install the packed package, and others, into a project."""
    packed = run(npm, "pack", "--silent", "--pack-destination", str(directory), directory=PACKAGE).strip()
    run(npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", f"./{packed}", *others, directory=directory)


def test_the_packed_package_in_an_empty_project(npm: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "node_project", project, ignore=shutil.ignore_patterns("node_modules"))
    install(npm, directory=project)
    installed = project / "node_modules" / "dualwrite-broker"
    assert sorted(path.name for path in (installed / "src").iterdir()) == ["index.d.ts", "index.js"]
    said = run(npm, "test", directory=project)
    assert "# pass 6\n" in said
    assert "# fail 0\n" in said


def test_the_suite_of_the_page(npm: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "other-languages.md").read_text()
    (suite,) = re.findall(r"```js\n(.*?)```", page, re.DOTALL)
    (tmp_path / "orders.test.mjs").write_text(suite)
    (tmp_path / "package.json").write_text('{"name": "orders", "private": true}')
    install(npm, "kafkajs@2.2.4", directory=tmp_path)
    said = run("node", "--test", "--test-reporter=tap", "orders.test.mjs", directory=tmp_path)
    assert "# pass 1\n" in said


def test_the_type_declarations_match_a_suite_in_typescript(npm: str, tmp_path: Path) -> None:
    """The declarations are sound, a suite that uses each call passes the strictest checks, and a typo does not."""
    (tmp_path / "package.json").write_text('{"name": "typed", "private": true, "type": "module"}')
    install(npm, "typescript@5.9.3", "@types/node@20", directory=tmp_path)
    options = {"strict": True, "noEmit": True, "module": "nodenext", "target": "es2022", "skipLibCheck": False}
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["suite.ts"]}))
    (tmp_path / "suite.ts").write_text(TYPED)
    run("node_modules/.bin/tsc", directory=tmp_path)
    (tmp_path / "suite.ts").write_text(TYPED.replace("bootstrapServers", "bootstrapServer"))
    with pytest.raises(AssertionError, match="Did you mean 'bootstrapServers'"):
        run("node_modules/.bin/tsc", directory=tmp_path)


def test_a_suite_that_forgets_to_stop_leaves_no_process(npm: str, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copytree(PACKAGE / "src", tmp_path / "src")
    (tmp_path / "forgets.js").write_text(
        'import { startBroker } from "./src/index.js";\n'
        "const broker = await startBroker();\n"
        "console.log(broker.bootstrapServers);\n"
    )
    host, _, port = run("node", "forgets.js", directory=tmp_path).strip().rpartition(":")

    def is_gone() -> bool:
        with socket.socket() as connection:
            return connection.connect_ex((host, int(port))) == errno.ECONNREFUSED

    until(is_gone)
