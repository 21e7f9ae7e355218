"""`python -m benchmarks.broker`: compare the emulator with alternative brokers, in one run, with ratios.

Each round starts every broker twice: once to measure its memory (idle, and holding a million records of 100 bytes),
once to measure its speed. Clients are confluent-kafka in a process of their own. A peer that this machine cannot run is
left out, and the reason is printed. `benchmarks.broker_scale` shows how costs depend on how much the emulator holds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.broker_peers import (
    APACHE_KAFKA,
    EMULATOR,
    KFAKE,
    LIBRDKAFKA_MOCK,
    PEERS,
    PeerMissingError,
    RunningBroker,
)

MEGABYTE = 1e6
_RECORD_BYTES = 1000

Results = dict[str, list[float]]
"""The values of one broker, by the name of the measure."""


@dataclass(frozen=True)
class Measure:
    """One row of the table."""

    name: str
    unit: str
    smaller_is_better: bool = False
    digits: int = 0


START = Measure("start to first response", "s", smaller_is_better=True, digits=2)
IDLE = Measure("resident memory, idle", "MB", smaller_is_better=True)
LOADED = Measure("resident memory, 1M records of 100 B", "MB", smaller_is_better=True)
ONE_PRODUCER = Measure("one-record transactions, 1 producer", "/s")
MANY_PRODUCERS = Measure("one-record transactions, 16 producers", "/s")
TRANSACTION_CPU = Measure("broker's CPU per transaction, 16 producers", "us", smaller_is_better=True)
BULK_IN = Measure("bulk in, records of 1 kB", "MB/s")
BULK_OUT = Measure("bulk out", "MB/s")
BULK_BOTH = Measure("bulk in and out at the same time", "MB/s")
BULK_CPU = Measure("broker's CPU per GB in", "s", smaller_is_better=True, digits=2)

MEASURES = (
    START,
    IDLE,
    LOADED,
    ONE_PRODUCER,
    MANY_PRODUCERS,
    TRANSACTION_CPU,
    BULK_IN,
    BULK_OUT,
    BULK_BOTH,
    BULK_CPU,
)

LEFT_OUT: Mapping[tuple[str, Measure], str] = {
    (LIBRDKAFKA_MOCK, LOADED): "it keeps only the newest 5 MB of a partition",
    (LIBRDKAFKA_MOCK, BULK_OUT): "it keeps only the newest 5 MB of a partition",
    (LIBRDKAFKA_MOCK, BULK_BOTH): "it keeps only the newest 5 MB of a partition",
}


@dataclass(frozen=True)
class Target:
    """A target for the emulator: a bound, or a ratio to a peer's value."""

    measure: Measure
    bound: float
    peer: str | None = None

    def __str__(self) -> str:
        if self.peer is not None:
            return f"{self.measure.name}: at least {self.bound:.2f} x {self.peer}"
        return f"{self.measure.name}: below {self.bound:g} {self.measure.unit}"


TARGETS = (
    Target(START, 0.3),
    Target(IDLE, 80),
    Target(MANY_PRODUCERS, 0.5, LIBRDKAFKA_MOCK),
    Target(MANY_PRODUCERS, 1.0, APACHE_KAFKA),
    Target(BULK_IN, 1 / 3, KFAKE),
    Target(BULK_OUT, 1 / 3, KFAKE),
    Target(BULK_BOTH, 1 / 3, KFAKE),
)


@dataclass(frozen=True)
class Effort:
    """The amount of work of a run."""

    rounds: int
    duration_s: float
    records: int
    bulk_records: int


def run_client(broker: RunningBroker, workload: str, **options: float | str) -> dict[str, float]:
    """Run a client with `workload`, and return its results. Raises RuntimeError if it fails."""
    flags = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    program = [sys.executable, "-m", "benchmarks.broker_clients", workload]
    done = subprocess.run(
        [*program, "--bootstrap-servers", broker.bootstrap_servers, *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{workload} failed:\n{done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def measure_memory(broker: RunningBroker, results: Results, effort: Effort) -> None:
    results.setdefault(START.name, []).append(broker.start_s)
    results.setdefault(IDLE.name, []).append(broker.resident_mb())
    run_client(broker, "in", topic="small", records=effort.records, record_bytes=100)
    results.setdefault(LOADED.name, []).append(broker.resident_mb())


def measure_speed(broker: RunningBroker, results: Results, effort: Effort, wanted: set[Measure]) -> None:
    def add(measure: Measure, value: float) -> None:
        results.setdefault(measure.name, []).append(value)

    add(START, broker.start_s)
    for measure, producers in ((ONE_PRODUCER, 1), (MANY_PRODUCERS, 16)):
        cpu_s = broker.cpu_s()
        done = run_client(broker, "transactions", producers=producers, duration_s=effort.duration_s)
        add(measure, done["count"] / done["elapsed_s"])
        if measure is MANY_PRODUCERS:
            add(TRANSACTION_CPU, (broker.cpu_s() - cpu_s) / done["count"] * 1e6)
    megabytes = effort.bulk_records * _RECORD_BYTES / MEGABYTE
    bulk = {"records": effort.bulk_records, "record_bytes": _RECORD_BYTES}
    cpu_s = broker.cpu_s()
    add(BULK_IN, megabytes / run_client(broker, "in", topic="bulk", **bulk)["elapsed_s"])
    add(BULK_CPU, (broker.cpu_s() - cpu_s) / megabytes * 1000)
    if BULK_OUT in wanted:
        add(BULK_OUT, megabytes / run_client(broker, "out", topic="bulk", **bulk)["elapsed_s"])
    if BULK_BOTH in wanted:
        add(BULK_BOTH, megabytes / run_client(broker, "both", topic="small", **bulk)["elapsed_s"])


def run_round(peer: str, results: Results, effort: Effort) -> None:
    start = PEERS[peer]
    wanted = {measure for measure in MEASURES if (peer, measure) not in LEFT_OUT}
    with start() as broker:
        measure_memory(broker, results, effort)
    with start() as broker:
        measure_speed(broker, results, effort, wanted)


def shown(results: Results, measure: Measure, peer: str) -> str:
    if (peer, measure) in LEFT_OUT or measure.name not in results:
        return "-"
    return f"{statistics.median(results[measure.name]):,.{measure.digits}f}"


def ratio(measured: Mapping[str, Results], measure: Measure, peer: str) -> float | None:
    """Return how many times better the emulator is than `peer`, by medians; None if one of them has no value."""
    ours, theirs = measured[EMULATOR].get(measure.name), measured.get(peer, {}).get(measure.name)
    if not ours or not theirs or (peer, measure) in LEFT_OUT:
        return None
    quotient = statistics.median(ours) / statistics.median(theirs)
    return 1 / quotient if measure.smaller_is_better else quotient


def table(measured: Mapping[str, Results]) -> Table:
    """Return a table of all measures and brokers, with the ratio by which the emulator is better (above 1)."""
    peers = [peer for peer in measured if peer != EMULATOR]
    made = Table(title="brokers side by side (medians); x: the emulator is better by")
    made.add_column("measure")
    made.add_column("unit")
    made.add_column(EMULATOR, justify="right")
    for peer in peers:
        made.add_column(peer, justify="right")
        made.add_column("x", justify="right")
    for measure in MEASURES:
        cells = [measure.name, measure.unit, shown(measured[EMULATOR], measure, EMULATOR)]
        for peer in peers:
            times = ratio(measured, measure, peer)
            cells += [shown(measured[peer], measure, peer), "-" if times is None else f"{times:.2f}"]
        made.add_row(*cells)
    return made


def verdict(target: Target, measured: Mapping[str, Results]) -> str:
    """Return a line that says whether the emulator reaches `target`."""
    if target.peer is not None:
        times = ratio(measured, target.measure, target.peer)
        if times is None:
            return f"not measured  {target}"
        return f"{'reached' if times >= target.bound else 'MISSED'}: {times:.2f} x  {target}"
    value = statistics.median(measured[EMULATOR][target.measure.name])
    return f"{'reached' if value < target.bound else 'MISSED'}: {value:.2f} {target.measure.unit}  {target}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.broker", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--duration-s", type=float, default=3.0, help="of each run of transactions")
    parser.add_argument("--records", type=int, default=1_000_000, help="held when memory is measured")
    parser.add_argument("--bulk-records", type=int, default=200_000, help="of 1 kB, in each bulk run")
    parser.add_argument("--peer", choices=PEERS, action="append", help="compare with these only")
    chosen = parser.parse_args()
    effort = Effort(chosen.rounds, chosen.duration_s, chosen.records, chosen.bulk_records)
    console = Console()
    peers = [peer for peer in PEERS if peer == EMULATOR or not chosen.peer or peer in chosen.peer]
    measured: dict[str, Results] = {peer: {} for peer in peers}
    missing: dict[str, str] = {}
    for number in range(effort.rounds):
        for peer in peers:
            if peer in missing:
                continue
            with console.status(f"round {number + 1} of {effort.rounds}: {peer}"):
                try:
                    run_round(peer, measured[peer], effort)
                except PeerMissingError as error:
                    missing[peer] = str(error)
                    del measured[peer]
    console.print(table(measured))
    for (peer, measure), reason in LEFT_OUT.items():
        if peer in measured:
            console.print(f"- {peer}, {measure.name}: {reason}")
    for peer, reason in missing.items():
        console.print(f"- {peer} is left out: {reason}")
    for target in TARGETS:
        console.print(verdict(target, measured), highlight=False)


if __name__ == "__main__":
    main()
