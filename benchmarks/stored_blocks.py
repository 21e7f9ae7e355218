"""`python -m benchmarks.stored_blocks`: the cost of `Direct(when_kafka_is_away="store")`, beside an outbox.

One Postgres and one broker serve the whole run: the emulator on disk, or an Apache Kafka (`--real`). In each round all
ways run one after the other, in processes of their own, so that a ratio compares measurements that are close in time.
An outbox has a relay that polls; its cost is added to that of the writers. In the way "Kafka away" the broker is killed
before the writers start; then it comes back, and a recovery, which is timed, publishes the stored blocks.

Bytes are those of the whole server: the log that it wrote, and by how much all tables and indexes have grown, both from
before the first write until the last record was read, divided by the writes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from benchmarks.clients import Done
from benchmarks.dual_write import Reader, readable_ms, relay, run_way
from benchmarks.dual_write_ways import OUTBOX, POOL, STORE, Written
from benchmarks.dual_write_work import PREFIX, create_tables
from benchmarks.producer import duration_of, new_topic, rounds_of, show_progress
from dualwrite.recipes.recovery.service import RecoveryService
from dualwrite.testing.postgres import PostgresServer
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.crash.chaos_servers import KillableEmulator, KillableKafka
from tests.support.real_kafkas import OLDER, RELEASED, Kind

STYLES: Final = ("psycopg", "sqlalchemy")
PLAIN: Final = "dual write"
AWAY: Final = "store, Kafka away"
AT_LEAST_ONCE: Final = "outbox"
IN_TRANSACTIONS: Final = "outbox, relay in transactions"
WAYS: Final[Mapping[str, str]] = {
    PLAIN: POOL,
    "store, Kafka there": STORE,
    AWAY: STORE,
    AT_LEAST_ONCE: OUTBOX,
    IN_TRANSACTIONS: OUTBOX,
}
"""The ways by name, each with its name in the writers' process."""
REAL: Final[Mapping[str, Kind]] = {kind.version: kind for kind in (OLDER, RELEASED)}
_WIDTH: Final = 170
_PUBLISH_TIMEOUT_S: Final = 120.0
_SIZE: Final = sa.text(
    "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind = 'r' AND n.nspname = current_schema()"
)
_LOG: Final = sa.text("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
_WRITES: Final = sa.text("SELECT count(*) FROM bench_rows")


@dataclass(frozen=True)
class Bytes:
    """Bytes that a server has written, and bytes that it holds."""

    log: int
    tables: int

    @classmethod
    def of(cls, engine: sa.Engine) -> Bytes:
        with engine.connect() as connection:
            return cls(*(int(connection.scalar(query) or 0) for query in (_LOG, _SIZE)))


@dataclass(frozen=True)
class Measured:
    """One way in one round; everything is for one write, which is a row and a record."""

    done: Done
    cpu_us: float
    """CPU time of the writers, and of the relay."""
    log_bytes: float
    table_bytes: float
    published_per_s: float
    """Counted from the first write until the last record was read or, if Kafka was away, of the recovery alone."""
    readable_p50_ms: float | None
    readable_p99_ms: float | None
    publishing_log_bytes: float = 0.0
    """Log bytes of the recovery, if Kafka was away; not in `log_bytes`."""


Rounds = dict[str, list[Measured]]
FIGURES: Final[Mapping[str, Callable[[Measured], float]]] = {
    "writes/s": lambda each: each.done.transactions_per_s,
    "p50": lambda each: each.done.p50_ms,
    "p99": lambda each: each.done.p99_ms,
    "CPU": lambda each: each.cpu_us,
    "log bytes": lambda each: each.log_bytes,
    "table bytes": lambda each: each.table_bytes,
}
"""The figures that the ratios compare."""


@dataclass
class Servers:
    """The servers and settings of all measurements."""

    postgres: PostgresServer
    broker: KillableEmulator | KillableKafka
    engine: sa.Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = sa.create_engine(self.postgres.url, poolclass=sa.NullPool)

    @property
    def database_url(self) -> str:
        return self.postgres.url.render_as_string(hide_password=False)

    def begin(self) -> Bytes:
        """Make empty tables, and begin a new stretch of the log, in which each page is logged whole once."""
        create_tables(self.engine)
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("CHECKPOINT"))
        return Bytes.of(self.engine)

    def writes(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.scalar(_WRITES) or 0)


def measure(servers: Servers, style: str, way: str, workers: int, duration_s: float, processes: int) -> Measured:
    """Run the workers of one way, and its relay or its recovery."""

    def written(topic: str) -> Written:
        name = f"psycopg: {WAYS[way]}" if style == "psycopg" else WAYS[way]
        return run_way(
            name, workers, servers.database_url, servers.broker.bootstrap_servers, topic, duration_s, processes
        )

    before = servers.begin()
    with new_topic(servers.broker.bootstrap_servers) as topic:
        if way == AWAY:
            return _measure_away(servers, before, lambda: written(topic))
        return _measure_there(servers, before, way, topic, lambda: written(topic))


def _measure_there(servers: Servers, before: Bytes, way: str, topic: str, written: Callable[[], Written]) -> Measured:
    address = servers.broker.bootstrap_servers
    reader = Reader(address, topic)
    relay_cpu_s: list[float] = []
    try:
        with ExitStack() as stack:
            if WAYS[way] == OUTBOX:
                named = f"{PREFIX}relay-{uuid.uuid4().hex[:8]}" if way == IN_TRANSACTIONS else None
                relay_cpu_s = stack.enter_context(relay(servers.database_url, address, topic, named))
            done = written()
            reader.wait_for(set(done.ended_s))
    finally:
        reader.close()
    writes, after = servers.writes(), Bytes.of(servers.engine)
    readable = readable_ms(done, reader.seen_s)
    centiles = statistics.quantiles([*readable] * 2, n=100, method="inclusive")
    return Measured(
        done.done,
        done.done.cpu_s_per_million + sum(relay_cpu_s) / writes * 1e6,
        (after.log - before.log) / writes,
        (after.tables - before.tables) / writes,
        len(done.ended_s) / (max(reader.seen_s.values()) - min(done.ended_s.values())),
        centiles[49],
        centiles[98],
    )


def _measure_away(servers: Servers, before: Bytes, written: Callable[[], Written]) -> Measured:
    servers.broker.kill()
    try:
        done = written()
    finally:
        stored = Bytes.of(servers.engine)
        servers.broker.start_again()
    began_s = time.perf_counter()
    _publish(servers)
    publishing_s = time.perf_counter() - began_s
    writes, after = servers.writes(), Bytes.of(servers.engine)
    return Measured(
        done.done,
        done.done.cpu_s_per_million,
        (stored.log - before.log) / writes,
        (stored.tables - before.tables) / writes,
        writes / publishing_s,
        None,
        None,
        (after.log - stored.log) / writes,
    )


def _publish(servers: Servers) -> None:
    deadline_s = time.monotonic() + _PUBLISH_TIMEOUT_S
    address = servers.broker.bootstrap_servers
    with RecoveryService(servers.engine, prefix=PREFIX, min_age_ms=0, bootstrap_servers=address) as service:
        while service.recover().found:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"what was stored is not published within {_PUBLISH_TIMEOUT_S:g} s")


# ---- output -----------------------------------------------------------------------------------------------------


def ratio(rounds: Rounds, way: str, base: str, figure: str) -> float:
    """Return the median of the rounds' ratios."""
    value = FIGURES[figure]
    return statistics.median(value(one) / value(other) for one, other in zip(rounds[way], rounds[base], strict=True))


def ratios(rounds: Rounds, base: str) -> Iterator[str]:
    """Yield a line for each way that is compared with `base`."""
    for way in rounds:
        if way != base:
            compared = ", ".join(f"{figure} {ratio(rounds, way, base, figure):.2f} x" for figure in FIGURES)
            yield f"{way}, as a multiple of {base}: {compared}"


def table(title: str, rounds: Rounds) -> Table:
    """Return a table with a line per way: medians of the rounds."""
    made = Table(title=title)
    made.add_column("way", no_wrap=True)
    columns = ("writes/s", "published/s", "p50 ms", "p99 ms", "readable p50 ms", "readable p99 ms", "CPU us")
    for column in (*columns, "log bytes", "... to publish", "table bytes"):
        made.add_column(column, justify="right", no_wrap=True)
    for way, measured in rounds.items():
        made.add_row(
            way,
            f"{_median(measured, lambda each: each.done.transactions_per_s):,.0f}",
            f"{_median(measured, lambda each: each.published_per_s):,.0f}",
            f"{_median(measured, lambda each: each.done.p50_ms):.2f}",
            f"{_median(measured, lambda each: each.done.p99_ms):.2f}",
            _median_or_none([each.readable_p50_ms for each in measured]),
            _median_or_none([each.readable_p99_ms for each in measured]),
            f"{_median(measured, lambda each: each.cpu_us):,.0f}",
            f"{_median(measured, lambda each: each.log_bytes):,.0f}",
            f"{_median(measured, lambda each: each.publishing_log_bytes):,.0f}",
            f"{_median(measured, lambda each: each.table_bytes):,.0f}",
        )
    return made


def _median(measured: Sequence[Measured], value: Callable[[Measured], float]) -> float:
    return statistics.median(value(each) for each in measured)


def _median_or_none(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{statistics.median(there):.2f}" if there else "-"


# ---- options ----------------------------------------------------------------------------------------------------


@contextmanager
def servers_of(real: str | None) -> Iterator[Servers]:
    """Start the servers. Raises SystemExit if this machine cannot run that Kafka."""
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer.start())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualwrite-bench-")))
        try:
            broker = (
                KillableEmulator(directory / "emulator", "bench", 1)
                if real is None
                else KillableKafka(REAL[real], "bench", 1)
            )
        except ServerUnavailableError as error:
            raise SystemExit(str(error)) from error
        stack.callback(broker.stop)
        yield Servers(postgres, broker)


def run(chosen: argparse.Namespace) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    styles, workers, ways = chosen.style or STYLES, chosen.workers or [1, 8], chosen.way or WAYS
    results: dict[tuple[str, int], Rounds] = {
        (style, number): {way: [] for way in ways} for style in styles for number in workers
    }
    total = chosen.rounds * len(results) * len(ways)
    with servers_of(chosen.real) as servers, show_progress(console, total) as progressed:
        for _ in range(chosen.rounds):
            for (style, number), rounds in results.items():
                for way in ways:
                    measured = measure(servers, style, way, number, chosen.duration_s, chosen.processes)
                    rounds[way].append(measured)
                    progressed(f"{style}, {number} workers, {way}: {measured.done.transactions_per_s:,.0f}/s")
    broker = "the emulator, on disk" if chosen.real is None else f"Apache Kafka {chosen.real}"
    for (style, number), rounds in results.items():
        console.print(table(f"{style}, {number} workers, {broker}; for a row and a record of 100 bytes each", rounds))
        for base in (PLAIN, AT_LEAST_ONCE):
            for line in ratios(rounds, base) if base in rounds else ():
                console.print(line, highlight=False, markup=False, soft_wrap=True)


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stored_blocks",
        description="A pool's dual writes, with when_kafka_is_away=store (Kafka there, and away), "
        "and an outbox with a polling relay: rates, latencies, CPU, and bytes of the database.",
    )
    parser.add_argument("--rounds", type=rounds_of, default=3, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--duration-s", type=duration_of, default=3.0, metavar="SECONDS", help="(default: %(default)s)")
    parser.add_argument("--workers", type=rounds_of, action="append", metavar="N", help="(default: 1, then 8)")
    parser.add_argument(
        "--processes", type=rounds_of, default=1, metavar="N", help="that share the workers (default: %(default)s)"
    )
    parser.add_argument("--style", choices=STYLES, action="append", help="only this one; may be repeated")
    parser.add_argument("--way", choices=WAYS, action="append", help="only this one; may be repeated")
    parser.add_argument("--real", choices=REAL, help="an Apache Kafka of this version instead of the emulator")
    return parser


def main() -> None:
    run(options().parse_args())


if __name__ == "__main__":
    main()
