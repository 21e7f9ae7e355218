"""`python -m benchmarks.producer`: compare dualwrite's producers with other clients, on the same broker, with ratios.

Each round starts each broker once, in a process of its own, and runs every workload with every client, one after the
other: other load on the machine hits all clients alike, and a ratio compares measurements that are close in time.
Clients run in processes of their own too, each time with a new topic of one partition, so that no client's partitioner
matters.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.broker_peers import APACHE_KAFKA, EMULATOR, PEERS, PeerMissingError
from benchmarks.clients import Done

OURS = "Producer"
CONFLUENT = "confluent-kafka"
BROKERS = (EMULATOR, APACHE_KAFKA)
MIN_DURATION_S = 0.1
_TIMEOUT_S = 30.0
_WARNINGS = 4  # of syslog
_FILE_WIDTH = 140

SMALL_CLIENTS = ("Producer", "AsyncProducer", "Producer, prepared", CONFLUENT, "aiokafka", "kafka-python")
BULK_CLIENTS = (
    "Producer",
    "Producer, send_batch",
    "Producer, send_batch of Arrow",
    "AsyncProducer",
    "AsyncProducer, send_batch",
    "AsyncProducer, send_batch of Arrow",
    CONFLUENT,
    "confluent-kafka, produce_batch",
    "aiokafka",
    "kafka-python",
)


@dataclass(frozen=True)
class Workload:
    """The transactions that each client runs."""

    name: str
    records: int
    record_bytes: int
    producers: int = 1

    @property
    def clients(self) -> tuple[str, ...]:
        return SMALL_CLIENTS if self.records == 1 else BULK_CLIENTS

    @property
    def unit(self) -> str:
        return "transactions/s" if self.records == 1 else "records/s"

    def rate(self, done: Done) -> float:
        """Return the rate that matters for this workload."""
        return done.transactions_per_s if self.records == 1 else done.records_per_s


ONE_PRODUCER = Workload("1 x 100 B, 1 producer", 1, 100)
MANY_PRODUCERS = Workload("1 x 100 B, 16 producers", 1, 100, producers=16)
BULK_SMALL = Workload("10,000 x 100 B", 10_000, 100)
BULK_LARGE = Workload("10,000 x 1 KiB", 10_000, 1024)

WORKLOADS = {
    workload.name: workload
    for workload in (
        ONE_PRODUCER,
        MANY_PRODUCERS,
        Workload("100 x 100 B", 100, 100),
        Workload("100 x 1 KiB", 100, 1024),
        BULK_SMALL,
        BULK_LARGE,
    )
}

Rounds = Mapping[str, Sequence[Done]]
"""The measurements of each client, round by round."""

Measured = Mapping[tuple[str, str], Rounds]
"""The rounds by broker and workload."""


@dataclass(frozen=True)
class Bar:
    """A target for one of dualwrite's producers in a workload: a ratio to another client's rate, or a latency."""

    workload: Workload
    client: str
    times: float | None = None
    p99_ms: float | None = None
    brokers: tuple[str, ...] = BROKERS

    def __str__(self) -> str:
        wanted = f"at least {self.times:g} x {CONFLUENT}" if self.p99_ms is None else f"p99 below {self.p99_ms:g} ms"
        return f"{self.workload.name}, {self.client}: {wanted}"


BARS = (
    Bar(ONE_PRODUCER, "Producer", times=2),
    Bar(ONE_PRODUCER, "AsyncProducer", times=2),
    Bar(MANY_PRODUCERS, "Producer", times=1),
    Bar(MANY_PRODUCERS, "AsyncProducer", times=1),
    *(Bar(bulk, "Producer", times=0.7) for bulk in (BULK_SMALL, BULK_LARGE)),
    *(Bar(bulk, "AsyncProducer", times=0.5) for bulk in (BULK_SMALL, BULK_LARGE)),
    *(
        Bar(bulk, f"{face}, {what}", times=1)
        for bulk in (BULK_SMALL, BULK_LARGE)
        for face in ("Producer", "AsyncProducer")
        for what in ("send_batch", "send_batch of Arrow")
    ),
    Bar(ONE_PRODUCER, "Producer", p99_ms=3, brokers=(EMULATOR,)),
    Bar(ONE_PRODUCER, "AsyncProducer", p99_ms=3, brokers=(EMULATOR,)),
)


def ratio(workload: Workload, ours: Sequence[Done], theirs: Sequence[Done]) -> float:
    """Return how many times faster `ours` is, as the median of the rounds' ratios."""
    return statistics.median(workload.rate(a) / workload.rate(b) for a, b in zip(ours, theirs, strict=True))


def verdict(bar: Bar, broker: str, measured: Measured) -> str:
    """Return a line that says whether `bar` is reached on `broker`."""
    rounds = measured.get((broker, bar.workload.name), {})
    if not all(rounds.get(name) for name in ({bar.client, CONFLUENT} if bar.p99_ms is None else {bar.client})):
        return f"not measured  {broker}: {bar}"
    if bar.p99_ms is not None:
        value = statistics.median(done.p99_ms for done in rounds[bar.client])
        return f"{'reached' if value < bar.p99_ms else 'MISSED'}: {value:.2f} ms  {broker}: {bar}"
    times = ratio(bar.workload, rounds[bar.client], rounds[CONFLUENT])
    reached = bar.times is not None and times >= bar.times
    return f"{'reached' if reached else 'MISSED'}: {times:.2f} x  {broker}: {bar}"


def table(broker: str, workload: Workload, rounds: Rounds) -> Table:
    """Return a table with a line per client: medians of the rounds, and the ratio of its rate to confluent-kafka's."""
    made = Table(title=f"{broker}: transactions of {workload.name}")
    made.add_column("client")
    for column in (workload.unit, "min", "max", "p50 ms", "p99 ms", "CPU s per million records", f"/ {CONFLUENT}"):
        made.add_column(column, justify="right")
    for client in (name for name in workload.clients if name in rounds):
        done = rounds[client]
        rates = [workload.rate(each) for each in done]
        others = rounds.get(CONFLUENT)
        made.add_row(
            client,
            *(f"{value:,.0f}" for value in (statistics.median(rates), min(rates), max(rates))),
            f"{statistics.median(each.p50_ms for each in done):.2f}",
            f"{statistics.median(each.p99_ms for each in done):.2f}",
            f"{statistics.median(each.cpu_s_per_million for each in done):.2f}",
            f"{ratio(workload, done, others):.2f} x" if others else "-",
        )
    return made


# ---- measuring --------------------------------------------------------------------------------------------------


@contextmanager
def new_topic(bootstrap_servers: str) -> Iterator[str]:
    """Create a topic of one partition, and delete it afterwards, because a fast client would fill memory and disk."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    settings: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap_servers, "log_level": _WARNINGS}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(_TIMEOUT_S)
    del admin  # it would complain if the broker was away meanwhile
    try:
        yield name
    finally:
        admin = AdminClient(settings)
        admin.delete_topics([name])[name].result(_TIMEOUT_S)


def measure(client: str, workload: Workload, bootstrap_servers: str, duration_s: float) -> Done:
    """Run a client in a process of its own. Raises SystemExit with its output if it fails."""
    with new_topic(bootstrap_servers) as topic:
        options = {
            "bootstrap-servers": bootstrap_servers,
            "topic": topic,
            "producers": workload.producers,
            "records": workload.records,
            "record-bytes": workload.record_bytes,
            "duration-s": duration_s,
        }
        flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.clients", client, *flags], capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise SystemExit(f"{client}, {workload.name}: exit status {done.returncode}\n{done.stderr}")
    return Done(**json.loads(done.stdout))


Results = dict[tuple[str, str], dict[str, list[Done]]]


def in_turn(clients: Sequence[str], number: int) -> list[str]:
    """Rotate the clients: another one is first in each round, because the first one finds a colder broker."""
    first = number % len(clients) if clients else 0
    return [*clients[first:], *clients[:first]]


def run_round(
    broker: str, plan: Mapping[Workload, Sequence[str]], number: int, duration_s: float, results: Results
) -> Iterator[str]:
    """Run every workload with every client, in turn; yield a line after each."""
    with PEERS[broker]() as running:
        # a broker on the JVM needs seconds of work until its code is compiled
        measure(CONFLUENT, MANY_PRODUCERS, running.bootstrap_servers, 3 * duration_s)
        for workload, clients in plan.items():
            for client in in_turn(clients, number):
                done = measure(client, workload, running.bootstrap_servers, duration_s)
                results.setdefault((broker, workload.name), {}).setdefault(client, []).append(done)
                yield f"{broker}, {workload.name}, {client}: {workload.rate(done):,.0f} {workload.unit}"


@contextmanager
def show_progress(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal, a line per measurement elsewhere; yield the function to call after each."""
    if console.is_terminal:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("", total=total)
            yield lambda line: progress.update(task, advance=1, description=line)
        return
    numbers = count(1)

    def show(line: str) -> None:
        console.print(f"{next(numbers)} of {total}: {line}", highlight=False, soft_wrap=True)

    yield show


def run(brokers: Sequence[str], plan: Mapping[Workload, Sequence[str]], chosen: argparse.Namespace) -> None:
    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    results: Results = {}
    missing: dict[str, str] = {}
    total = chosen.rounds * len(brokers) * sum(map(len, plan.values()))
    with show_progress(console, total) as measured:
        for number in range(chosen.rounds):
            for broker in brokers:
                if broker in missing:
                    continue
                try:
                    for line in run_round(broker, plan, number, chosen.duration_s, results):
                        measured(line)
                except PeerMissingError as error:
                    missing[broker] = str(error)
    for (broker, name), rounds in results.items():
        console.print(table(broker, WORKLOADS[name], rounds))
    for broker, reason in missing.items():
        console.print(f"- {broker} is left out: {reason}")
    console.print(f"confluent-kafka {confluent_kafka.version()}, medians of {chosen.rounds}", highlight=False)
    for bar in BARS:
        for broker in bar.brokers:
            if broker in brokers and bar.workload in plan and bar.client in plan[bar.workload]:
                console.print(verdict(bar, broker, results), highlight=False, soft_wrap=True)


# ---- options ----------------------------------------------------------------------------------------------------


def plan_of(workloads: Sequence[str] | None, clients: Sequence[str] | None) -> dict[Workload, list[str]]:
    """Return which clients run which workloads; all of them unless some were chosen."""
    plan = {}
    for name in workloads or WORKLOADS:
        workload = WORKLOADS[name]
        plan[workload] = [client for client in workload.clients if not clients or client in clients]
    return plan


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.producer",
        description="Compare dualwrite's producers with confluent-kafka, aiokafka and kafka-python, on the emulator "
        "and on Apache Kafka, each in turn and in a process of its own: rates, latencies, and ratios.",
    )
    parser.add_argument(
        "--rounds", type=rounds_of, default=3, metavar="N", help="measurements of each client (default: %(default)s)"
    )
    parser.add_argument(
        "--duration-s",
        type=duration_of,
        default=1.0,
        metavar="SECONDS",
        help="how long a measurement takes, unless it has sent half a gibibyte before (default: %(default)s)",
    )
    parser.add_argument("--broker", choices=BROKERS, action="append", help="only this one; may be repeated")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="only this one; may be repeated")
    parser.add_argument(
        "--client",
        choices=dict.fromkeys((*SMALL_CLIENTS, *BULK_CLIENTS)),
        action="append",
        help="only this one; may be repeated",
    )
    return parser


def rounds_of(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def duration_of(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_DURATION_S <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {MIN_DURATION_S} seconds")
    return seconds


def main() -> None:
    chosen = options().parse_args()
    run(chosen.broker or BROKERS, plan_of(chosen.workload, chosen.client), chosen)


if __name__ == "__main__":
    main()
