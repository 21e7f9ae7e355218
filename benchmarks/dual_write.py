"""`python -m benchmarks.dual_write`: compare dual writes with their parts and with their alternatives.

One PostgreSQL, or one MariaDB, and one broker emulator serve the whole run. In each round, all ways run one after the
other, in processes of their own (one, or `--processes`), so that a ratio compares measurements that are close in time.
A read_committed consumer notes when each record can be read.

Each dual write is compared with the ways of its own style (the same library, threads or asyncio). A driver without an
ORM makes an outbox faster too; so the ways of psycopg are also compared with SQLAlchemy's, and both ratios are printed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks import broker_peers
from benchmarks.clients import Done
from benchmarks.dual_write_ways import (
    DATABASE,
    DUAL,
    KAFKA,
    OUTBOX,
    OUTBOXED,
    RECIPES,
    SEQUENCE,
    WAYS,
    WITH_SQLALCHEMY,
    Recipe,
    Written,
)
from benchmarks.dual_write_work import APART, create_tables
from benchmarks.producer import duration_of, new_topic, rounds_of, show_progress
from benchmarks.server_cost import cpu_s_of
from dualwrite.testing.postgres import PostgresServer
from tests.support.servers.mariadb import MariaDbServer

WORKERS = (1, 8, 32)
POSTGRESQL = "postgresql"
WAYS_ON = {POSTGRESQL: WAYS, "mariadb": list(WITH_SQLALCHEMY)}
"""The ways on each database."""
MAX_SEQUENCE_RATIO = 1.15
MIN_OUTBOX_RATIO = 0.8
_READ_TIMEOUT_S = 30.0
_WARM_UP_S = 0.3
_WIDTH = 150


@dataclass(frozen=True)
class Measured:
    """One way in one round. `readable_ms` is the time from the end of the block until each record was read, if any."""

    done: Done
    readable_ms: list[float]

    @property
    def readable_p50_ms(self) -> float:
        return statistics.median(self.readable_ms)

    @property
    def readable_p99_ms(self) -> float:
        return statistics.quantiles([*self.readable_ms] * 2, n=100, method="inclusive")[98]


Rounds = Mapping[str, Sequence[Measured]]
"""The measurements of each way, round by round."""


# ---- targets ----------------------------------------------------------------------------------------------------


_PLAIN = RECIPES[0]


def verdict_sum(rounds: Rounds, recipe: Recipe = _PLAIN) -> str:
    """Compare a dual write with the sum of its two commits, each measured alone."""
    ratio = statistics.median(
        dual.done.p50_ms / (database.done.p50_ms + kafka.done.p50_ms)
        for dual, database, kafka in zip(
            rounds[recipe.dual], rounds[recipe.database], rounds[recipe.kafka], strict=True
        )
    )
    wanted = f"p50 of a dual write at most {MAX_SEQUENCE_RATIO:g} x ({recipe.database} + {recipe.kafka})"
    return f"{'reached' if ratio <= MAX_SEQUENCE_RATIO else 'MISSED'}: {ratio:.2f} x  {wanted}  [{recipe.dual}]"


def verdict_sequence(rounds: Rounds) -> str:
    """Compare a dual write with the same two commits in sequence, where each finds the caches the other left."""
    ratio = statistics.median(
        dual.done.p50_ms / sequence.done.p50_ms for dual, sequence in zip(rounds[DUAL], rounds[SEQUENCE], strict=True)
    )
    wanted = f"p50 of a dual write at most {MAX_SEQUENCE_RATIO:g} x (database, then a Kafka transaction)"
    return f"{'reached' if ratio <= MAX_SEQUENCE_RATIO else 'MISSED'}: {ratio:.2f} x  {wanted}"


def verdict_rate(workers: int, rounds: Rounds, recipe: Recipe = _PLAIN) -> str:
    """Compare the rate of commits with the outbox's."""
    ratio = statistics.median(
        dual.done.transactions_per_s / outbox.done.transactions_per_s
        for dual, outbox in zip(rounds[recipe.dual], rounds[recipe.outbox], strict=True)
    )
    wanted = f"{workers} workers: dual writes per second at least {MIN_OUTBOX_RATIO:g} x the outbox's"
    return f"{'reached' if ratio >= MIN_OUTBOX_RATIO else 'MISSED'}: {ratio:.2f} x  {wanted}{_compared(recipe)}"


def verdict_readable(workers: int, rounds: Rounds, recipe: Recipe = _PLAIN) -> str:
    """Compare the time from the end of the block until the record can be read with the outbox's."""
    dual, outbox = (
        statistics.median(each.readable_p50_ms for each in rounds[way]) for way in (recipe.dual, recipe.outbox)
    )
    wanted = f"{workers} workers: from the end of the block until readable, below the outbox's {outbox:.2f} ms"
    return f"{'reached' if dual < outbox else 'MISSED'}: {dual:.2f} ms  {wanted}{_compared(recipe)}"


def _compared(recipe: Recipe) -> str:
    return f"  [{recipe.dual} | {recipe.outbox}]"


def comparisons() -> Iterator[Recipe]:
    """Yield each dual write with the ways of its own style, then the other styles' with SQLAlchemy's in threads."""
    yield from RECIPES
    for recipe in RECIPES:
        if recipe.outbox != OUTBOX:
            yield Recipe(recipe.dual, DATABASE, KAFKA, OUTBOX)


def verdicts(results: Mapping[int, Rounds]) -> Iterator[str]:
    """Yield the verdict of every target that was measured."""
    for workers, rounds in results.items():
        if workers == 1 and all(rounds.get(way) for way in (DUAL, SEQUENCE)):
            yield verdict_sequence(rounds)
        for recipe in comparisons():
            if workers == 1 and all(rounds.get(way) for way in (recipe.dual, recipe.database, recipe.kafka)):
                yield verdict_sum(rounds, recipe)
            if workers > 1 and all(rounds.get(way) for way in (recipe.dual, recipe.outbox)):
                yield verdict_rate(workers, rounds, recipe)
                yield verdict_readable(workers, rounds, recipe)


def table(workers: int, rounds: Rounds) -> Table:
    """Return a table with a line per way: medians of the rounds. CPU time is that of the writing processes, per row."""
    of_each = "a row and a record of 100 bytes each; readable: from the end of the block"
    made = Table(title=f"{workers} worker{'s' if workers > 1 else ''}, {of_each}")
    made.add_column("way", no_wrap=True)
    columns = ("per second", "min", "max", "p50 ms", "p99 ms", "CPU us", "readable p50 ms", "readable p99 ms")
    for column in columns:
        made.add_column(column, justify="right")
    for way, measured in rounds.items():
        rates = [each.done.transactions_per_s for each in measured]
        readable = ["-", "-"]
        if all(each.readable_ms for each in measured):
            centiles = zip(*((each.readable_p50_ms, each.readable_p99_ms) for each in measured), strict=True)
            readable = [f"{statistics.median(of_rounds):.2f}" for of_rounds in centiles]
        made.add_row(
            way,
            *(f"{value:,.0f}" for value in (statistics.median(rates), min(rates), max(rates))),
            f"{statistics.median(each.done.p50_ms for each in measured):.2f}",
            f"{statistics.median(each.done.p99_ms for each in measured):.2f}",
            f"{statistics.median(each.done.cpu_s_per_million for each in measured):,.0f}",
            *readable,
        )
    return made


# ---- measuring --------------------------------------------------------------------------------------------------


class Reader:
    """A read_committed consumer in a thread, which notes when it read each key."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.seen_s: dict[str, float] = {}
        self._ended = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "bench-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                seen_s = time.perf_counter()
                key = message.key()
                assert key is not None
                self.seen_s[key.decode()] = seen_s

    def wait_for(self, keys: set[str]) -> None:
        """Wait until all keys were read. Raises SystemExit if they do not arrive."""
        deadline_s = time.monotonic() + _READ_TIMEOUT_S
        while not keys <= self.seen_s.keys():
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{len(keys - self.seen_s.keys())} records did not arrive within {_READ_TIMEOUT_S} s")
            time.sleep(0.01)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._consumer.close()


@contextmanager
def relay(
    database_url: str, bootstrap_servers: str, topic: str, transactional_id: str | None = None
) -> Iterator[list[float]]:
    """Run the outbox's relay in a process of its own; yield a list that gets its CPU seconds at the end."""
    options = ["--database-url", database_url, "--bootstrap-servers", bootstrap_servers, "--topic", topic]
    options += [] if transactional_id is None else ["--transactional-id", transactional_id]
    cpu_s: list[float] = []
    command = [sys.executable, "-m", "benchmarks.outbox_relay", *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"the relay ended with exit status {process.wait(10)}")
        yield cpu_s
    finally:
        process.stdin.close()
        cpu_s += [float(line) for line in process.stdout]
        process.stdout.close()
        process.wait(10)


@contextmanager
def publisher(database_url: str, bootstrap_servers: str, linger_ms: int = 0) -> Iterator[list[float]]:
    """Run `dualwrite publish` in a process of its own; yield a list that gets its CPU seconds at the end."""
    options = ["--database", database_url, "--bootstrap-server", bootstrap_servers, "--prefix", APART]
    options += ["--linger-ms", str(linger_ms)]
    options += ["--prepare-threshold", "5"] if database_url.startswith(POSTGRESQL) else []
    cpu_s: list[float] = []
    command = [sys.executable, "-m", "dualwrite", "publish", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if (line := process.stdout.readline()) != f"{APART}: published by this process\n":
            raise SystemExit(f"dualwrite publish did not begin: {line}")
        begun_s = cpu_s_of(process.pid)
        yield cpu_s
        cpu_s.append(cpu_s_of(process.pid) - begun_s)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def measure(
    way: str,
    workers: int,
    database_url: sa.URL,
    bootstrap_servers: str,
    duration_s: float,
    *,
    processes: int = 1,
    linger_ms: int = 0,
) -> Measured:
    """Run workers in one way, in processes of their own. Raises SystemExit with their output if they fail."""
    url = database_url.render_as_string(hide_password=False)
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    create_tables(engine)
    with new_topic(bootstrap_servers) as topic:
        reader = Reader(bootstrap_servers, topic)
        try:
            with ExitStack() as stack:
                if way.endswith(OUTBOX):
                    stack.enter_context(relay(url, bootstrap_servers, topic))
                if way.endswith(OUTBOXED):
                    stack.enter_context(publisher(url, bootstrap_servers, linger_ms))
                written = run_way(way, workers, url, bootstrap_servers, topic, duration_s, processes)
                reader.wait_for(set(written.ended_s))
        finally:
            reader.close()
    return Measured(written.done, readable_ms(written, reader.seen_s))


def run_way(
    way: str,
    workers: int,
    database_url: str,
    bootstrap_servers: str,
    topic: str,
    duration_s: float,
    processes: int,
) -> Written:
    options = {
        "database-url": database_url,
        "bootstrap-servers": bootstrap_servers,
        "topic": topic,
        "workers": max(1, workers // processes),
        "duration-s": duration_s,
    }
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "benchmarks.dual_write_ways", way, *flags]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(min(processes, workers))
    ]
    outputs = [process.communicate() for process in started]
    for process, (_, complaint) in zip(started, outputs, strict=True):
        if process.returncode != 0:
            raise SystemExit(f"{way}, {workers} workers: exit status {process.returncode}\n{complaint}")
    return together([Written.of_json(output) for output, _ in outputs])


def together(written: Sequence[Written]) -> Written:
    """Combine the measurements of concurrent processes; percentiles are averages of theirs."""
    dones = [each.done for each in written]
    return Written(
        Done(
            transactions_per_s=sum(done.transactions_per_s for done in dones),
            records_per_s=sum(done.records_per_s for done in dones),
            p50_ms=statistics.mean(done.p50_ms for done in dones),
            p99_ms=statistics.mean(done.p99_ms for done in dones),
            cpu_s_per_million=statistics.mean(done.cpu_s_per_million for done in dones),
        ),
        {key: at_s for each in written for key, at_s in each.ended_s.items()},
    )


def readable_ms(written: Written, seen_s: Mapping[str, float]) -> list[float]:
    """Return the times from the end of the block until the record was read, after the warm-up.

    Both times are from Linux's system-wide monotonic clock. The response to COMMIT would be no starting point: if many
    tasks share a loop, a record may be read before its writer processes that response.
    """
    if not written.ended_s:
        return []
    first_s, last_s = min(written.ended_s.values()), max(written.ended_s.values())
    started_s = first_s + min(_WARM_UP_S, (last_s - first_s) / 2)
    return [(seen_s[key] - at_s) * 1000 for key, at_s in written.ended_s.items() if at_s >= started_s]


@contextmanager
def _database(kind: str) -> Iterator[sa.URL]:
    if kind == POSTGRESQL:
        with PostgresServer.start() as postgres:
            yield postgres.url
    else:
        with MariaDbServer.start() as mariadb:
            yield mariadb.create_database("bench")


def run(ways: Sequence[str], workers: Sequence[int], chosen: argparse.Namespace) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    results: dict[int, dict[str, list[Measured]]] = {number: {way: [] for way in ways} for number in workers}
    total = chosen.rounds * len(workers) * len(ways)
    with (
        _database(chosen.database) as database_url,
        broker_peers.emulator() as broker,
        show_progress(console, total) as progressed,
    ):
        for _ in range(chosen.rounds):
            for number in workers:
                for way in ways:
                    measured = measure(
                        way,
                        number,
                        database_url,
                        broker.bootstrap_servers,
                        chosen.duration_s,
                        processes=chosen.processes,
                        linger_ms=chosen.linger_ms,
                    )
                    results[number][way].append(measured)
                    progressed(f"{number} workers, {way}: {measured.done.transactions_per_s:,.0f}/s")
    if chosen.processes > 1:
        console.print(f"{chosen.processes} processes share the workers of every way")
    for number, rounds in results.items():
        console.print(table(number, rounds))
    for line in verdicts(results):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


# ---- options ----------------------------------------------------------------------------------------------------


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dual_write",
        description="Dual writes per second, beside the database alone, a Kafka transaction alone, commit-then-produce "
        "and an outbox with a polling relay; and how long from the end of a block until its record can be read.",
    )
    parser.add_argument(
        "--rounds", type=rounds_of, default=3, metavar="N", help="measurements of each way (default: %(default)s)"
    )
    parser.add_argument(
        "--duration-s",
        type=duration_of,
        default=2.0,
        metavar="SECONDS",
        help="of a measurement (default: %(default)s)",
    )
    parser.add_argument(
        "--workers", type=int, choices=WORKERS, action="append", help="only this number; may be repeated"
    )
    parser.add_argument(
        "--processes",
        type=rounds_of,
        default=1,
        metavar="N",
        help="that share the workers (default: %(default)s)",
    )
    parser.add_argument(
        "--linger-ms", type=int, default=0, metavar="MS", help="of `dualwrite publish` (default: %(default)s)"
    )
    parser.add_argument("--database", choices=list(WAYS_ON), default=POSTGRESQL, help="(default: %(default)s)")
    parser.add_argument("--way", choices=WAYS, action="append", help="only this one; may be repeated")
    return parser


def main() -> None:
    chosen = options().parse_args()
    run(chosen.way or WAYS_ON[chosen.database], chosen.workers or WORKERS, chosen)


if __name__ == "__main__":
    main()
