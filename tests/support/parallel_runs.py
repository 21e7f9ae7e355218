"""How a run of all tests is shared out among the processes of `make test`: a plugin for pytest.

Each of them collects everything and then works off file by file. The longest files come first, so that nobody is busy
with one when the others have nothing left; those that share a JVM of Spark, or a real Kafka, go to one process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling, Scheduling

IN_ONE_JVM: Final = (
    "tests/spark/test_failure_matrix.py",
    "tests/spark/test_datasource.py",
    "tests/spark/test_batch.py",
    "tests/spark/test_foreach_batch.py",
    "tests/spark/test_source.py",
    "tests/interop/spark/test_connector.py",
    "tests/spark/test_pages.py",
)
"""Those that call `start_session`. The last of them stops the session."""

LONGEST: Final = (
    *IN_ONE_JVM,
    "tests/crash/test_matrix.py",
    "tests/crash/test_pool_chaos.py",
    "tests/spark/test_chaos.py",
    "tests/spark/test_driver_kills.py",
    "tests/spark/test_connect.py",
)
"""What takes half a minute or more; one after another."""


ON_ONE_KAFKA: Final = {
    "tests/interop/aiokafka/": "interop's Apache Kafka",
    "tests/interop/confluent_kafka/": "interop's Apache Kafka",
    "tests/interop/kafka_python/": "interop's Apache Kafka",
    "tests/interop/raw_wire/": "interop's Apache Kafka",
    "tests/apache_kafka/": "Apache Kafkas of every tier",
    "tests/admin/": "the administration's Apache Kafkas",
}
"""Folders whose tests share real brokers: each process would start its own, and they take CPU while they idle."""


class FilesAndServers(LoadFileScheduling):
    """File by file, but what shares a JVM of Spark or a real Kafka is one piece of work."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "one JVM" if file in IN_ONE_JVM else _broker_of(file) or file


def _broker_of(file: str) -> str | None:
    return next((broker for folder, broker in ON_ONE_KAFKA.items() if file.startswith(folder)), None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling | None:
    return FilesAndServers(config, log) if config.getoption("dist") == "loadfile" else None  # type: ignore[arg-type]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is imported and collected stays until the end, so nobody need look for garbage among it, then or later."""
    gc.disable()
    if _is_worker(session.config) and session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        _import_in_turns(session.config)
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_worker(config):
        items.sort(key=lambda item: _place(item.nodeid.partition("::")[0]))


@cache
def _place(file: str) -> int:
    if file in LONGEST:
        return LONGEST.index(file)
    return len(LONGEST) + (_broker_of(file) is None)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _import_in_turns(config: pytest.Config) -> None:
    """Import the test files, each process beginning with its own share of them.

    pytest rewrites the asserts of a file that it imports for the first time and keeps the result, which is two thirds
    of the time that collecting takes. Beginning all at the same file, each process would do that for all files.
    """
    worker: dict[str, str | int] = config.workerinput  # type: ignore[attr-defined]
    modules = _test_modules(config.rootpath)
    first = len(modules) * int(str(worker["workerid"]).removeprefix("gw")) // int(worker["workercount"])
    for module in [*modules[first:], *modules[:first]]:
        with suppress(Exception, pytest.skip.Exception):  # it is told when the file is collected
            import_module(module)


def _test_modules(root: Path) -> Sequence[str]:
    files = (path.relative_to(root).with_suffix("") for path in sorted((root / "tests").rglob("test_*.py")))
    return [".".join(file.parts) for file in files]
