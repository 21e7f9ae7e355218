"""`python -m benchmarks.cost`: the cost of a ready dual write of each style, counted rather than timed.

Counts Python calls, in the caller's thread (or the event loop's) and in all other threads of the process, and requests
to the database and to the broker. The counts do not depend on the load of the machine, so commits can be compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

import sqlalchemy as sa
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.clients import Job
from benchmarks.dual_write_ways import BY_TASKS, DUAL, EVERY_BY_THREADS, POOL
from benchmarks.dual_write_work import Work, create_tables
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.network_proxy import NetworkProxy
from dualwrite.testing.postgres import PostgresServer

STYLES = [
    DUAL,
    *(f"{style}{POOL}" for style in ("", "AsyncSession: ", "psycopg: ", "asyncio: ")),
]
_WARM_UP = 20
_COUNTED = 200


class CallCounter:
    """Counts calls of Python functions by thread while it is on."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self._is_on = False

    def install(self) -> None:
        """Count in this thread, and in each that is started from now on."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count calls while the block runs."""
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._is_on and event == "call":
            self.calls[threading.get_ident()] += 1


def count_here(way: str, job: Job, database_url: str) -> None:
    """Run one way in this process: warm up, report to the parent, count, and report the calls per dual write."""
    counter = CallCounter()
    counter.install()
    work = Work(job, database_url)
    if way in BY_TASKS:
        uvloop.run(_count_in_loop(way, work, counter))
        return
    with EVERY_BY_THREADS[way](work, "cost") as transact:
        for _ in range(_WARM_UP):
            transact()
        _report_to_parent("ready")
        with counter.on():
            for _ in range(_COUNTED):
                transact()
        _report_to_parent(_result(counter))
        if work.pool is not None:
            work.pool.close()


async def _count_in_loop(way: str, work: Work, counter: CallCounter) -> None:
    async with BY_TASKS[way](work, "cost") as transact:
        for _ in range(_WARM_UP):
            await transact()
        _report_to_parent("ready")
        with counter.on():
            for _ in range(_COUNTED):
                await transact()
        _report_to_parent(_result(counter))
        if work.pool is not None:
            await work.pool.close()


def _report_to_parent(line: str) -> None:
    """Print a line, and wait until the parent has read its own counters."""
    print(line, flush=True)
    sys.stdin.readline()


def _result(counter: CallCounter) -> str:
    mine = counter.calls.pop(threading.get_ident(), 0)
    return json.dumps({"caller": mine / _COUNTED, "others": counter.calls.total() / _COUNTED})


class Served:
    """A database and a broker that count their requests."""

    def __init__(self, server: PostgresServer, broker: Emulator) -> None:
        self._proxy = NetworkProxy.for_database(server.url)
        self._broker = broker
        self._numbers = count()
        self._database_requests = 0
        self._proxy.cut_at(self._count_request)  # it never cuts
        self.database_url = self._proxy.through(server.url).render_as_string(hide_password=False)

    def _count_request(self, request: bytes) -> bool:
        self._database_requests += 1
        return False

    def requests(self) -> Counter[str]:
        """Return the number of requests so far, by kind."""
        counted = Counter({"database": self._database_requests})
        for api in self._broker.metrics().apis:
            counted[api.api] += api.requests
        return counted

    def cost_of(self, way: str) -> dict[str, Any]:
        """Return the average cost of one dual write."""
        topic = f"cost-{next(self._numbers)}"
        self._broker.create_topic(topic)
        arguments = [sys.executable, "-m", "benchmarks.cost", "--child", way, "--topic", topic]
        arguments += ["--bootstrap-servers", self._broker.bootstrap_servers, "--database-url", self.database_url]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            _expect(child.stdout.readline)
            before = self.requests()
            child.stdin.write("\n")
            child.stdin.flush()
            calls: dict[str, Any] = json.loads(_expect(child.stdout.readline))
            requests = self.requests() - before
            child.stdin.write("\n")
            child.stdin.flush()
        per_write = {what: number / _COUNTED for what, number in requests.items() if number >= _COUNTED}
        return calls | {"requests": per_write}


def _expect(readline: Callable[[], str]) -> str:
    line = readline()
    if not line:
        raise SystemExit("the counted process has ended")
    return line


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("ways", nargs="*", default=STYLES, help=f"of {', '.join([*EVERY_BY_THREADS, *BY_TASKS])}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for hidden in ("--child", "--topic", "--bootstrap-servers", "--database-url"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        job = Job(arguments.bootstrap_servers, arguments.topic)
        count_here(arguments.child, job, arguments.database_url)
        return
    costs = count_all(arguments.ways)
    if arguments.json:
        print(json.dumps(costs, indent=1))
    else:
        Console(width=150).print(_table(costs))


def count_all(ways: list[str]) -> dict[str, dict[str, Any]]:
    """Start a database and a broker, and return the cost of each way."""
    server = PostgresServer.start()
    try:
        with Emulator() as broker:
            create_tables_for(server)
            served = Served(server, broker)
            return {way: served.cost_of(way) for way in ways}
    finally:
        server.stop()


def create_tables_for(server: PostgresServer) -> None:
    """Create the empty tables of the benchmark."""
    engine = sa.create_engine(server.url)
    create_tables(engine)
    engine.dispose()


def _table(costs: dict[str, dict[str, Any]]) -> Table:
    table = Table("style", "Python calls: caller", "other threads", "sum", "requests", title="A ready dual write")
    for way, cost in costs.items():
        requests = ", ".join(f"{what} {number:.1f}" for what, number in sorted(cost["requests"].items()))
        total = cost["caller"] + cost["others"]
        table.add_row(way, f"{cost['caller']:.0f}", f"{cost['others']:.0f}", f"{total:.0f}", requests)
    return table


if __name__ == "__main__":
    main()
