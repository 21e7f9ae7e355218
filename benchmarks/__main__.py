"""`make bench`: our producer beside others, against one emulator, in turns, with ratios."""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.clients import CLIENTS, WORKLOADS

OURS = "dualwrite"
MIN_DURATION_S = 0.1


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


def run_in_turns(workload: str, rounds: int, duration_s: float, console: Console) -> dict[str, list[float]]:
    """A B C A B C ..., each time against a fresh broker, so that drift of the machine hits all alike."""
    rates: dict[str, list[float]] = {name: [] for name in CLIENTS}
    with show_progress(console, workload, total=rounds * len(CLIENTS)) as measured:
        for _ in range(rounds):
            for name in CLIENTS:
                with emulator(["bench"]) as bootstrap_servers:
                    rate = measure(name, workload, bootstrap_servers, "bench", duration_s)
                rates[name].append(rate)
                measured(name, rate)
    return rates


@contextmanager
def show_progress(console: Console, workload: str, total: int) -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal, a line per measurement elsewhere; yields what is to be called after each."""
    if console.is_terminal:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(workload, total=total)
            yield lambda name, rate: progress.advance(task)
        return
    numbers = count(1)

    def show(name: str, rate: float) -> None:
        console.print(f"{workload}: {next(numbers)} of {total}, {name}: {rate:,.0f}", highlight=False, soft_wrap=True)

    yield show


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
    arguments = _parser().parse_args()
    console = Console()
    results = {name: run_in_turns(name, arguments.rounds, arguments.duration_s, console) for name in WORKLOADS}
    for name, rates in results.items():
        console.print(report(name, rates))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{OURS}'s producer beside other clients against the broker emulator, each in turn and in a "
        "process of its own: what each does per second, and the ratios.",
    )
    parser.add_argument(
        "--rounds",
        type=_rounds,
        default=5,
        metavar="N",
        help="how often each client is measured (default: %(default)s)",
    )
    parser.add_argument(
        "--duration-s",
        type=_duration_s,
        default=2.0,
        metavar="SECONDS",
        help="how long a measurement takes (default: %(default)s)",
    )
    return parser


def _rounds(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _duration_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_DURATION_S <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {MIN_DURATION_S} on")
    return seconds


if __name__ == "__main__":
    main()
