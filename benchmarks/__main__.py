"""`make bench`: our producer beside others, against one emulator, in turns, with ratios."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.clients import CLIENTS, WORKLOADS

OURS = "dualwrite"


@contextmanager
def emulator(topics: list[str]) -> Iterator[str]:
    """A broker in a process of its own; yields its bootstrap address."""
    options = [option for topic in topics for option in ("--topic", f"{topic}:1")]
    broker = subprocess.Popen(
        [sys.executable, "-m", "dualwrite.broker_emulator", *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert broker.stdout is not None
        yield broker.stdout.readline().strip()
    finally:
        broker.terminate()
        broker.wait(10)


def measure(client: str, workload: str, bootstrap_servers: str, topic: str, duration_s: float) -> float:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.clients", client, workload),
            *("--bootstrap-servers", bootstrap_servers, "--topic", topic, "--duration-s", str(duration_s)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{client}, {workload}: exit status {done.returncode}\n{done.stderr}")
    return float(done.stdout)


def run_in_turns(workload: str, rounds: int, duration_s: float, progress: Progress) -> dict[str, list[float]]:
    """A B C A B C ..., each time against a fresh broker, so that drift of the machine hits all alike."""
    rates: dict[str, list[float]] = {name: [] for name in CLIENTS}
    task = progress.add_task(workload, total=rounds * len(CLIENTS))
    for _ in range(rounds):
        for name in CLIENTS:
            with emulator(["bench"]) as bootstrap_servers:
                rates[name].append(measure(name, workload, bootstrap_servers, "bench", duration_s))
            progress.advance(task)
    return rates


def report(workload: str, rates: dict[str, list[float]]) -> Table:
    table = Table(title=workload)
    table.add_column("client")
    for column in ("median", "min", "max", f"{OURS} / this one"):
        table.add_column(column, justify="right")
    for name, values in rates.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(rates[OURS], values, strict=True))
        numbers = (f"{value:,.0f}" for value in (statistics.median(values), min(values), max(values)))
        table.add_row(name, *numbers, f"{ratio:.2f} x")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration-s", type=float, default=2.0)
    arguments = parser.parse_args()
    console = Console()
    with Progress(console=console, transient=True) as progress:
        results = {name: run_in_turns(name, arguments.rounds, arguments.duration_s, progress) for name in WORKLOADS}
    for name, rates in results.items():
        console.print(report(name, rates))


if __name__ == "__main__":
    main()
