"""How a run of all tests is shared out among the processes of `make test`: a plugin for pytest.

Each of them collects everything and then works off file by file. The longest files come first, so that no process is
left with one at the end; those that share a JVM of Spark, or real Kafkas, go to one process.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling, Scheduling

from tests.support.real_kafkas import stop_shared_kafkas

IN_ONE_JVM: Final = (
    "tests/spark/test_failure_matrix.py",
    "tests/spark/test_datasource.py",
    "tests/spark/test_given_up.py",
    "tests/spark/test_batch.py",
    "tests/spark/test_foreach_batch.py",
    "tests/spark/test_source.py",
    "tests/spark/test_sql.py",
    "tests/interop/spark/test_connector.py",
    "tests/spark/test_pages.py",
)
"""Files that call `start_session`. The last of them stops the session."""

ON_REAL_KAFKAS: Final = (
    "tests/apache_kafka/test_readme.py",
    "tests/apache_kafka/test_repair.py",
    "tests/apache_kafka/test_tiers.py",
    "tests/apache_kafka/test_dual_write.py",
    "tests/apache_kafka/test_spark_completion.py",
    "tests/apache_kafka/test_cli.py",
    "tests/apache_kafka/test_failures.py",
    "tests/apache_kafka/test_in_doubt.py",
    "tests/apache_kafka/test_late_requests.py",
    "tests/apache_kafka/test_topic_store.py",
    "tests/apache_kafka/test_recreated_topics.py",
    "tests/admin/test_everywhere.py",
    "tests/admin/test_pattern.py",
)
"""Files that ask `tests.support.real_kafkas` for a broker, as many in `INTEROP` do. Their last test ends it."""

INTEROP: Final = "tests/interop/"

SHARING_NOTHING: Final = (
    "tests/crash/test_driver_matrix.py",
    "tests/proof/test_exhaustive.py",
    "tests/proof/test_mutants.py",
    "tests/proof/test_simulation.py",
    "tests/spark/test_repair.py",
)
"""Files whose tests take long, and could each stand in a file of their own: each is a piece of work."""

LONGEST: Final = (
    *IN_ONE_JVM,
    "tests/spark/test_driver_kills.py",
    *ON_REAL_KAFKAS,
    *SHARING_NOTHING,
    "tests/conformance/test_databases.py",
    "tests/crash/test_matrix.py",
    "tests/crash/test_chaos.py",
    "tests/spark/test_chaos.py",
    "tests/crash/test_pool_leases.py",
    "tests/spark/test_protocol_crashes.py",
    "tests/crash/test_consume_kills.py",
    "tests/cli/test_recover.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_java.py",
    "tests/examples/test_demo.py",
)
"""Files that take half a minute or more; one after another."""

_ONE_JVM, _REAL_KAFKAS = "one JVM", "real Kafkas"


class FilesAndServers(LoadFileScheduling):
    """File by file; files that share a JVM of Spark or a real Kafka are one piece of work, independent ones many."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return nodeid if file in SHARING_NOTHING else _piece_of(file)


def _piece_of(file: str) -> str:
    if file in IN_ONE_JVM:
        return _ONE_JVM
    return _REAL_KAFKAS if _is_on_real_kafkas(file) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling | None:
    return FilesAndServers(config, log) if config.getoption("dist") == "loadfile" else None  # type: ignore[arg-type]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Imported and collected objects stay until the end, so they are exempt from garbage collection, then and later."""
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
        items.sort(key=lambda item: _place(_file_of(item)))


@cache
def _place(file: str) -> int:
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """End brokers after their last test; a single process cannot tell which test that is, and keeps them."""
    try:
        return (yield)
    finally:
        is_last = nextitem is None or not _is_on_real_kafkas(_file_of(nextitem))
        if _is_worker(item.config) and _is_on_real_kafkas(_file_of(item)) and is_last:
            stop_shared_kafkas()


def _is_on_real_kafkas(file: str) -> bool:
    return file in ON_REAL_KAFKAS or (file.startswith(INTEROP) and file not in IN_ONE_JVM)


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _import_in_turns(config: pytest.Config) -> None:
    """Import the test files, each process beginning with its own share of them.

    pytest rewrites the asserts of a newly imported file and keeps the result: two thirds of the time of collecting.
    Beginning all at the same file, each process would do that for all files.
    """
    worker: dict[str, str | int] = config.workerinput  # type: ignore[attr-defined]
    modules = _test_modules(config.rootpath)
    first = len(modules) * int(str(worker["workerid"]).removeprefix("gw")) // int(worker["workercount"])
    for module in [*modules[first:], *modules[:first]]:
        with suppress(Exception, pytest.skip.Exception):  # reported when the file is collected
            import_module(module)


def _test_modules(root: Path) -> Sequence[str]:
    files = (path.relative_to(root).with_suffix("") for path in sorted((root / "tests").rglob("test_*.py")))
    return [".".join(file.parts) for file in files]
