"""The modules that an import loads: as few as it can, and none that only Unix has."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.import_graph import source_files

ROOT = Path(__file__).parents[2]
PRODUCTION = ("dualwrite.client", "dualwrite.recipes", "dualwrite.cli", "dualwrite.verify", "spark_sink")

LOADED = """
import {before}
import sys

before = set(sys.modules)
from dualwrite import {name}

print("\\n".join(set(sys.modules) - before))
"""

ON_ANOTHER_SYSTEM = """
import os, select, signal, socket, sys

# other packages' own affair, and all of them are there for Windows, too
import asyncio, multiprocessing.connection, aiokafka, asyncpg, click, kafka, psycopg, pyarrow, rich
import sqlalchemy.orm, pymysql

pymysql.install_as_MySQLdb()  # as settings of Django do

UNIX = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "crypt", "uvloop")
sys.modules.update(dict.fromkeys(UNIX))  # importing one raises ModuleNotFoundError
KEPT = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}  # Windows has these
for name in [name for name in vars(signal) if name.startswith("SIG") and name.isalpha() and name not in KEPT]:
    delattr(signal, name)
for module, names in (
    (os, "fork forkpty register_at_fork getuid geteuid getgid killpg O_DIRECTORY O_CLOEXEC O_NONBLOCK sync fchmod"),
    (socket, "AF_UNIX SO_REUSEPORT SOCK_CLOEXEC SOCK_NONBLOCK socketpair"),
    (select, "epoll poll EPOLLIN POLLIN"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

from importlib import import_module

for name in sys.stdin.read().split():
    try:
        import_module(name)
    except BaseException as error:
        raise SystemExit(f"{name}: {type(error).__name__}: {error}")
print("all")
"""


def python(code: str, *, given: str = "") -> str:
    """Run code in a process of its own and return its output."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, input=given, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(name: str, before: str) -> list[str]:
    """Return the modules that importing a public name loads, without those that another import has loaded."""
    return python(LOADED.format(name=name, before=before)).split()


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("DualWriter", "sqlalchemy.orm"),
        ("AsyncDualWriter", "sqlalchemy.ext.asyncio, sqlalchemy.orm"),
        ("PsycopgDualWriter", "psycopg"),
        ("AsyncpgDualWriter", "asyncpg"),
    ],
)
def test_importing_a_writer_loads_no_kafka_client(name: str, before: str) -> None:
    modules = loaded(name, before)
    foreign = {module.partition(".")[0] for module in modules}
    assert foreign & {"kafka", "aiokafka", "uvloop", "cramjam", "crc32c", "opentelemetry", "packaging"} == set()
    own = [module for module in modules if module.startswith("dualwrite")]
    assert 0 < len(own) < 114, "each takes about half a millisecond"


def test_importing_an_error_loads_nothing_else() -> None:
    assert sorted(module for module in loaded("FencedError", "logging") if module.startswith("dualwrite")) == [
        "dualwrite",
        "dualwrite.errors",
        "dualwrite.outcome",
    ]


def test_production_modules_need_nothing_of_unix_to_be_imported() -> None:
    modules = source_files("dualwrite", "spark_sink")
    directly_in_it = [name for name in modules if name.count(".") == 1 and name.startswith("dualwrite.")]
    faces = [name for name in directly_in_it if (ROOT / "dualwrite" / f"{name.partition('.')[2]}.py").exists()]
    names = [*faces, *(name for name in modules if name.startswith(PRODUCTION))]
    assert len(names) > 250
    assert python(ON_ANOTHER_SYSTEM, given="\n".join(names)).endswith("all\n")
