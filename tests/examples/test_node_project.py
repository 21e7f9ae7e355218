"""examples/node_project with the packed npm package, as a project that is empty but for them."""

from __future__ import annotations

import errno
import os
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


def test_the_packed_package_in_an_empty_project(npm: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "node_project", project, ignore=shutil.ignore_patterns("node_modules"))
    packed = run(npm, "pack", "--silent", "--pack-destination", str(tmp_path), directory=PACKAGE).strip()
    run(npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", str(tmp_path / packed), directory=project)
    installed = project / "node_modules" / "dualwrite-broker"
    assert sorted(path.name for path in (installed / "src").iterdir()) == ["index.d.ts", "index.js"]
    said = run(npm, "test", directory=project)
    assert "# pass 6\n" in said
    assert "# fail 0\n" in said


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
