"""examples/java_project with the installed Maven module, in a repository of Maven that has nothing else of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.cache import cache_directory, find_program
from tests.support.unavailable import skip

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "dualwrite" / "testing" / "clients" / "java"


@pytest.fixture
def maven() -> str:
    try:
        return find_program("mvn", "the example in Java is built by Maven")
    except ServerUnavailableError as error:
        skip(error)


def test_the_installed_module_in_a_project_of_its_own(maven: str, tmp_path: Path) -> None:
    repository = cache_directory() / "maven-repository-of-examples"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment["DUALWRITE_BROKER_COMMAND"] = f"{sys.executable} -m dualwrite.broker_emulator"
    for source, goal in ((MODULE, "install"), (ROOT / "examples" / "java_project", "test")):
        project = tmp_path / source.name
        shutil.copytree(source, project, ignore=shutil.ignore_patterns("target"))
        command = [maven, "-B", "-Dstyle.color=never", f"-Dmaven.repo.local={repository}", goal]
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Tests run: 7, Failures: 0, Errors: 0, Skipped: 0" in done.stdout
