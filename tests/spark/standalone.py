"""Test speculative attempts and the loss of an executor, on a cluster of two hosts: `local[*]` has neither.

    python -m tests.spark.standalone

Starts a standalone master, and workers on 127.0.0.1 and 127.0.0.2: Spark never starts the copy of a task on the host of
the original. Takes a minute or two; not part of the test suite. Exit status 1 if a check fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from spark_sink.pause_points import PausePoint as At
from tests.spark.faults import Action, Fault, Faults, Process
from tests.spark.sinks import SinkWorld, finish
from tests.support.conditions import until
from tests.support.servers.ports import free_port
from tests.support.spark_session import prepare_environment, start_session

_HOSTS = ("127.0.0.1", "127.0.0.2")
_REPOSITORY = Path(__file__).parents[2]
_DEADLINE_S = 120.0
_EAGER_SPECULATION = {
    "spark_speculation": "true",
    "spark_speculation_interval": "100ms",
    "spark_speculation_multiplier": "1.1",
    "spark_speculation_quantile": "0.5",
    "spark_speculation_minTaskRuntime": "300ms",
}


class Cluster:
    """A master and a worker on each host."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        log = self._start("master.Master", "127.0.0.1", "--port", str(port))
        until(lambda: "I have been elected leader" in log.read_text(), _DEADLINE_S)
        for host in _HOSTS:
            self._start("worker.Worker", host, "--cores", "2", "--memory", "1g", self.master)
        # a worker that waits long for the response registers once more
        until(lambda: all(f"Registering worker {host}:" in log.read_text() for host in _HOSTS), _DEADLINE_S)

    def _start(self, name: str, host: str, *arguments: str) -> Path:
        log = self._directory / f"{name}-{host}.log"
        home = Path(pyspark.__file__).parent
        process = subprocess.Popen(
            [
                *(str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"),
                *("--host", host, "--webui-port", "0", *arguments),
            ],
            cwd=self._directory,
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": host, "SPARK_NO_DAEMONIZE": "1"},
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
        )
        self._stack.callback(_end, process)
        return log


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


class Scenario:
    """A query on the cluster, with faults."""

    def __init__(self, spark: SparkSession, world: SinkWorld, directory: Path) -> None:
        self.world = world
        self.faults = Faults(directory / "faults", stall_s=8.0)
        self._spark = spark
        self._written: list[str] = []
        spark.dataSource.register(self.faults.format("faulty"))
        world.execute("CREATE TABLE target (id TEXT NOT NULL)")

    def run(self, while_it_runs: Callable[[], None] = lambda: None, *, batches: int = 1) -> None:
        """Run the query with so many new batches."""
        for _ in range(batches):
            values = [f"v{len(self._written) + number}" for number in range(8)]
            self.world.add_values(*values)
            self._written += values
        df = self.world.read(self._spark).selectExpr("key", "value", "value AS id").repartition(4)
        query = self.world.writer(df, dual_table="target").format("faulty").start()
        while_it_runs()
        finish(query, 120)

    def assert_right(self) -> None:
        written = sorted(self._written)
        until(lambda: not self.world.select("SELECT 1 FROM dw_attempt WHERE status IN ('OPEN', 'PREPARED')"), 30)
        assert self.world.values() == written
        assert sorted(row[0] for row in self.world.select("SELECT id FROM target")) == written
        assert {status for _, status, _ in self.world.batches()} == {"DONE"}

    def assert_nothing_left(self) -> None:
        assert self.world.open_transactions() == []
        assert set(self.world.statuses()) <= {"COMMITTED", "ABORTED"}, self.world.statuses()
        assert self.world.select("SELECT count(*) FROM dw_attempt WHERE live_txn_id IS NOT NULL") == [(0,)]


def speculate(scenario: Scenario) -> None:
    """Suspend an attempt: its copy on the other host wins, and later batches continue meanwhile."""
    for point in (At.AFTER_LEASE, At.AFTER_TAKE_OVER, At.AFTER_SEND, At.AFTER_PREPARE, At.AFTER_PREPARED):
        fault = Fault(point, Action.STALL, Process.TASK)
        scenario.faults.arm(fault)
        scenario.run(batches=3)
        assert scenario.faults.struck() == [fault], point
        scenario.assert_right()
        print(f"speculation: an attempt that slept {point}: {scenario.world.statuses()}", flush=True)


def lose_executor(scenario: Scenario) -> None:
    """Kill an executor in the middle of a task."""
    fault = Fault(At.AFTER_PREPARE, Action.WAIT, Process.TASK)
    scenario.faults.arm(fault)

    def kill() -> None:
        until(scenario.faults.has_struck, _DEADLINE_S)
        os.kill(_executors()[0], signal.SIGKILL)
        time.sleep(0.5)  # workers notice the death of their executor; the other one's must not
        assert scenario.faults.struck() == [fault]

    scenario.run(kill, batches=2)
    scenario.assert_right()
    print(f"an executor killed: {scenario.world.statuses()}", flush=True)


def _executors() -> list[int]:
    """Return the executors of this cluster, by the driver's address in the command lines of their JVMs."""
    mine = f"CoarseGrainedScheduler@127.0.0.1:{_driver_port()}".encode()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mine in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except FileNotFoundError:
            continue
    return sorted(found)


def _driver_port() -> str:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    return str(spark.conf.get("spark.driver.port"))


def main() -> int:
    """Run all scenarios, and return the exit status."""
    prepare_environment()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualwrite-standalone-")))
        postgres = stack.enter_context(PostgresServer.start())
        emulator = stack.enter_context(Emulator())
        cluster = Cluster(directory, stack)
        settings = {**_EAGER_SPECULATION, "spark_executor_memory": "500m", "spark_executor_cores": "2"}
        spark = start_session(cluster.master, **settings, spark_executorEnv_PYTHONPATH=str(_REPOSITORY))
        stack.callback(spark.stop)
        until(lambda: len(_executors()) == len(_HOSTS), _DEADLINE_S)
        url = postgres.url.render_as_string(hide_password=False)
        scenario = Scenario(spark, SinkWorld(emulator, url, directory), directory)
        try:
            speculate(scenario)
            lose_executor(scenario)
            scenario.run()  # its plan ends leftovers of late losers
            scenario.assert_right()
            scenario.assert_nothing_left()
        except AssertionError as error:
            print(f"not right: {error}", file=sys.stderr)
            return 1
    print("all rows once in the topic and in the table, and nothing is left open")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
