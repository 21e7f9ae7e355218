"""`python -m benchmarks.spark_sink`: the Spark sink beside Spark's own, and beside a hand-written one.

One Spark session, one broker and one Postgres serve the whole run. In each round, all sinks run one after the other, so
that a ratio compares measurements that are close in time. Large batches show rows per second, small ones the fixed cost
of a batch, and small ones of many tasks the cost of a task.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import broker_peers
from benchmarks.producer import new_topic, rounds_of, show_progress
from benchmarks.spark_ways import FOREACH, NOOP, SPARKS_OWN, THIS, WAYS, Input, NoopSink, Target
from dualwrite.testing.postgres import PostgresServer
from dualwrite.testing.server_unavailable import ServerUnavailableError
from spark_sink import ensure_java, register
from tests.support.servers.spark_kafka import spark_kafka_jars

MIN_RATIO_TO_SPARKS_OWN = 0.5
MAX_MS_ABOVE_NOOP = 150.0
MAX_RATIO_TO_NOOP = 1.2
FILE_PER_TASK_BYTES = 134_217_728
"""Spark's `spark.sql.files.maxPartitionBytes`: if opening a file counts as much, no task gets a second one."""
_FILE_WIDTH = 130


@dataclass(frozen=True)
class Size:
    """Batches of one size: the rows of each, and how many batches of a query are warm-up and how many are measured."""

    rows: int
    warm_up: int
    batches: int
    tasks: int = 2
    ways: Sequence[str] = tuple(WAYS)


LARGE = Size(200_000, warm_up=2, batches=4)
SMALL = Size(10, warm_up=3, batches=12)
MANY_TASKS = Size(320, warm_up=2, batches=8, tasks=32, ways=(NOOP, THIS))
SIZES = (LARGE, SMALL, MANY_TASKS)

Rounds = Mapping[str, Sequence[float]]
"""For each sink, the median milliseconds of a batch in each round."""


def verdict_large(rounds: Rounds) -> str:
    """Compare rows per second with Spark's own sink, which is at-least-once."""
    ratio = statistics.median(own / this for this, own in zip(rounds[THIS], rounds[SPARKS_OWN], strict=True))
    wanted = f"rows per second at least {MIN_RATIO_TO_SPARKS_OWN:g} x those of Spark's own sink"
    return f"{'reached' if ratio >= MIN_RATIO_TO_SPARKS_OWN else 'MISSED'}: {ratio:.2f} x  {wanted}"


def verdict_small(rounds: Rounds) -> str:
    """Compare the time of a small batch with the noop sink's."""
    above = statistics.median(this - noop for this, noop in zip(rounds[THIS], rounds[NOOP], strict=True))
    wanted = f"a batch of {SMALL.rows} rows at most {MAX_MS_ABOVE_NOOP:g} ms above the noop sink's"
    return f"{'reached' if above <= MAX_MS_ABOVE_NOOP else 'MISSED'}: {above:.0f} ms  {wanted}"


def verdict_many_tasks(rounds: Rounds) -> str:
    """Compare the time of a batch of many tasks with the noop sink's."""
    ratio = statistics.median(this / noop for this, noop in zip(rounds[THIS], rounds[NOOP], strict=True))
    wanted = f"a batch of {MANY_TASKS.tasks} tasks at most {MAX_RATIO_TO_NOOP:g} x the noop sink's"
    return f"{'reached' if ratio <= MAX_RATIO_TO_NOOP else 'MISSED'}: {ratio:.2f} x  {wanted}"


def verdicts(results: Mapping[Size, Rounds]) -> Iterator[str]:
    """Yield the verdict of every target that was measured."""
    wanted = (
        (LARGE, verdict_large, SPARKS_OWN),
        (SMALL, verdict_small, NOOP),
        (MANY_TASKS, verdict_many_tasks, NOOP),
    )
    for size, verdict, peer in wanted:
        rounds = results.get(size, {})
        if rounds.get(THIS) and rounds.get(peer):
            yield verdict(rounds)


def table(size: Size, rounds: Rounds, broker: str) -> Table:
    """Return a table with a line per sink: the median of the rounds, and the ratio to this sink."""
    made = Table(title=f"batches of {size.rows:,} rows of 100 bytes, {size.tasks} tasks, {broker}")
    made.add_column("sink")
    for column in ("ms per batch", "min", "max", "rows per second", "this sink's rows per second"):
        made.add_column(column, justify="right")
    for way, times in rounds.items():
        if not times:
            continue
        rate = size.rows * 1000 / statistics.median(times)
        beside = [theirs / ours for theirs, ours in zip(times, rounds.get(THIS, ()), strict=False)]
        made.add_row(
            way,
            *(f"{value:,.0f}" for value in (statistics.median(times), min(times), max(times), rate)),
            f"{statistics.median(beside):.2f} x" if beside and way != THIS else "-",
        )
    return made


class Surroundings(NamedTuple):
    """The servers and inputs of the whole run."""

    bootstrap_servers: str
    store_url: str
    txn_mode: str
    inputs: Mapping[Size, Input]


@contextmanager
def surroundings(sizes: Sequence[Size], jars: Sequence[str], *, kafka: bool) -> Iterator[Surroundings]:
    """Start Spark, a broker and a database, and write the input. Spark's error output goes to a temporary file."""
    start_broker = broker_peers.PEERS[_peer(kafka)]
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-") as directory,
        PostgresServer.start() as postgres,
        start_broker() as broker,
    ):
        with _errors_into(Path(directory, "spark.log")):
            session = start_session(jars)
        inputs = {
            size: Input(
                session,
                Path(directory, f"{size.rows}"),
                rows=size.rows,
                batches=size.warm_up + size.batches,
                tasks=size.tasks,
            )
            for size in sizes
        }
        store_url = postgres.url.render_as_string(hide_password=False)
        # by default, no released Kafka keeps a prepared transaction without a timeout
        yield Surroundings(broker.bootstrap_servers, store_url, "resume" if kafka else "kip939", inputs)
        session.stop()


def _peer(kafka: bool) -> str:
    return broker_peers.APACHE_KAFKA if kafka else broker_peers.EMULATOR


@contextmanager
def _errors_into(path: Path) -> Iterator[None]:
    """Redirect the standard error of processes that are started in the block."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def start_session(jars: Sequence[str]) -> SparkSession:
    """Return a local session whose workers can import this package."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    builder = SparkSession.builder.master("local[2]").appName("benchmarks.spark_sink")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.jars": ",".join(jars),
        "spark.log.level": "ERROR",
        "spark.sql.files.openCostInBytes": str(FILE_PER_TASK_BYTES),  # or Spark reads many small files in one task
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    session.dataSource.register(NoopSink)
    return session


def run(ways: Sequence[str], sizes: Sequence[Size], chosen: argparse.Namespace) -> None:
    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    try:
        jars = spark_kafka_jars()
    except ServerUnavailableError as error:
        console.print(f"{SPARKS_OWN} is left out: {error}", highlight=False, soft_wrap=True)
        jars, ways = [], [way for way in ways if way != SPARKS_OWN]
    results: dict[Size, dict[str, list[float]]] = {
        size: {way: [] for way in ways if way in size.ways} for size in sizes
    }
    with (
        surroundings(sizes, jars, kafka=chosen.kafka) as around,
        show_progress(console, chosen.rounds * sum(map(len, results.values()))) as progressed,
    ):
        for _ in range(chosen.rounds):
            for size in sizes:
                for way in results[size]:
                    ms = measure(way, size, around)
                    results[size][way].append(ms)
                    progressed(f"{size.rows:,} rows, {way}: {ms:,.0f} ms")
    for size, rounds in results.items():
        console.print(table(size, rounds, _peer(chosen.kafka)))
    for line in verdicts(results):
        console.print(line, highlight=False, soft_wrap=True)


def measure(way: str, size: Size, around: Surroundings) -> float:
    """Return the median time of the measured batches of a new query, in milliseconds."""
    with new_topic(around.bootstrap_servers) as topic:
        target = Target(around.bootstrap_servers, topic, around.store_url, around.txn_mode)
        return statistics.median(around.inputs[size].batch_times_ms(way, target, warm_up=size.warm_up))


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_sink",
        description=f"Rows per second at {LARGE.rows:,} rows a batch, and milliseconds per batch at {SMALL.rows} rows "
        f"and at {MANY_TASKS.rows} rows in {MANY_TASKS.tasks} tasks: "
        f"{THIS} beside {SPARKS_OWN}, {FOREACH}, and the {NOOP}.",
    )
    parser.add_argument(
        "--rounds", type=rounds_of, default=3, metavar="N", help="measurements of each sink (default: %(default)s)"
    )
    parser.add_argument("--kafka", action="store_true", help="write to a real Apache Kafka, not to the emulator")
    parser.add_argument("--rows", type=int, choices=[size.rows for size in SIZES], help="only batches of this size")
    parser.add_argument("--way", choices=WAYS, action="append", help="only this sink; may be repeated")
    return parser


def main() -> None:
    chosen = options().parse_args()
    sizes = [size for size in SIZES if chosen.rows in (None, size.rows)]
    run([way for way in WAYS if way in (chosen.way or WAYS)], sizes, chosen)


if __name__ == "__main__":
    main()
