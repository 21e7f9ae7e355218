"""`python -m benchmarks.many_producers`: the cost of a thousand transactional producers in one process.

Each line is measured in a process of its own, against a broker emulator in another process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.broker_peers import emulator

COUNTS = (1, 100, 1_000)
FACES = ("Producer", "AsyncProducer")
TOPIC = "bench"


class Cost(NamedTuple):
    """The cost of a number of producers in one process, in addition to that of the first one."""

    memory_kib: int
    threads: int
    sockets: int
    init_s: float
    transactions_s: float


def memory_kib() -> int:
    """Return the resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def sockets() -> int:
    """Return the number of sockets of this process: connections, and those of its event loop."""
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing itself
            targets.append(str(descriptor.readlink()))
    return sum(target.startswith("socket:") for target in targets)


def cost_since(before_kib: int, began_s: float, initialised_s: float) -> Cost:
    """Return the cost of producers that have all made their transaction now."""
    transactions_s = time.perf_counter() - initialised_s
    gc.collect()
    return Cost(memory_kib() - before_kib, threading.active_count(), sockets(), initialised_s - began_s, transactions_s)


def sync_cost(bootstrap_servers: str, count: int) -> Cost:
    """Measure producers for threads, used one after the other by one thread."""
    from dualwrite import Producer

    def make(name: str) -> Producer:
        return Producer(bootstrap_servers=bootstrap_servers, transactional_id=name)

    first = make("first")
    first.init_transactions()
    gc.collect()
    before_kib, began_s = memory_kib(), time.perf_counter()
    producers = [make(f"p-{i}") for i in range(count)]
    for producer in producers:
        producer.init_transactions()
    initialised_s = time.perf_counter()
    for producer in producers:
        with producer.transaction():
            producer.send(TOPIC, b"x" * 100)
    cost = cost_since(before_kib, began_s, initialised_s)
    for producer in [first, *producers]:
        producer.close()
    return cost


async def async_cost(bootstrap_servers: str, count: int) -> Cost:
    """Measure producers for asyncio, used concurrently, by a task each."""
    from dualwrite import AsyncProducer

    def make(name: str) -> AsyncProducer:
        return AsyncProducer(bootstrap_servers=bootstrap_servers, transactional_id=name)

    async def transact(producer: AsyncProducer) -> None:
        async with producer.transaction():
            await producer.send(TOPIC, b"x" * 100)

    first = make("first")
    await first.init_transactions()
    gc.collect()
    before_kib, began_s = memory_kib(), time.perf_counter()
    producers = [make(f"p-{i}") for i in range(count)]
    await asyncio.gather(*(producer.init_transactions() for producer in producers))
    initialised_s = time.perf_counter()
    await asyncio.gather(*(transact(producer) for producer in producers))
    cost = cost_since(before_kib, began_s, initialised_s)
    await asyncio.gather(*(producer.close() for producer in [first, *producers]))
    return cost


def measure(face: str, count: int) -> Cost:
    """Measure in a process of its own."""
    with emulator("--topic", f"{TOPIC}:1") as broker:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.many_producers",
                "--measure",
                face,
                str(count),
                broker.bootstrap_servers,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise SystemExit(f"{face}, {count}: exit status {done.returncode}\n{done.stderr}")
    return Cost(*json.loads(done.stdout))


def measure_here(face: str, count: int, bootstrap_servers: str) -> Cost:
    """Measure in this process."""
    if face == "Producer":
        return sync_cost(bootstrap_servers, count)
    import uvloop

    cost: Cost = uvloop.run(async_cost(bootstrap_servers, count))
    return cost


def report(costs: dict[tuple[str, int], Cost]) -> Table:
    """Return a table with a line per measurement."""
    table = Table(title="transactional producers in one process")
    table.add_column("")
    for column in ("producers", "MiB", "KiB each", "threads", "sockets", "initialise, s", "a transaction each, s"):
        table.add_column(column, justify="right")
    for (face, count), cost in costs.items():
        table.add_row(
            face,
            f"{count:,}",
            f"{cost.memory_kib / 1024:.1f}",
            f"{cost.memory_kib / count:.0f}",
            str(cost.threads),
            str(cost.sockets),
            f"{cost.init_s:.3f}",
            f"{cost.transactions_s:.3f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.many_producers",
        description="Memory, threads, sockets and time of many transactional producers in one process.",
    )
    parser.add_argument("--measure", nargs=3, metavar=("FACE", "COUNT", "SERVERS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        face, count, bootstrap_servers = arguments.measure
        print(json.dumps(measure_here(face, int(count), bootstrap_servers)))
        return
    Console().print(report({(face, count): measure(face, count) for face in FACES for count in COUNTS}))


if __name__ == "__main__":
    main()
