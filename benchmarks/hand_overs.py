"""`python -m benchmarks.hand_overs`: the cost of a thread between a caller and a socket.

The same 100 bytes go to an echo server, in a process of its own, and back: on a blocking socket, in an event loop that
the caller runs itself, and in an event loop that a thread runs, to which the caller hands each request and waits. The
last is how `Producer` works, once for each call that waits. All three repeat in alternation, and the table has medians,
because other load hits hand-overs hardest. `docs/decisions/one-thread-runs-the-loop.md` draws the conclusions.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

import uvloop
from rich.console import Console
from rich.table import Table

_MESSAGE = b"x" * 100
_HOST = "127.0.0.1"
_WARM_UP = 200

RoundTrip = Callable[[], object]
NewLoop = Callable[[], asyncio.AbstractEventLoop]


class Cost(NamedTuple):
    """The cost of one round trip to this process; `switches`: how often one of its threads went to sleep."""

    p50_us: float
    cpu_us: float
    switches: float


def measure(round_trip: RoundTrip, count: int) -> Cost:
    """Measure round trips that are made one after the other."""
    for _ in range(_WARM_UP):
        round_trip()
    latencies_s = []
    cpu_s, switches = time.process_time(), _switches()
    for _ in range(count):
        began_s = time.perf_counter()
        round_trip()
        latencies_s.append(time.perf_counter() - began_s)
    cpu_s, switches = time.process_time() - cpu_s, _switches() - switches
    return Cost(statistics.median(latencies_s) * 1e6, cpu_s / count * 1e6, switches / count)


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


# ---- the ways ---------------------------------------------------------------------------------------------------


class _Echoes(asyncio.Protocol):
    """A connection that calls `on_echo` once for each message."""

    def __init__(self) -> None:
        self.on_echo: Callable[[], object] = lambda: None
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.on_echo()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


@contextmanager
def blocking(port: int) -> Iterator[RoundTrip]:
    """Send and receive in the caller's thread, without a loop."""
    with socket.create_connection((_HOST, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def round_trip() -> None:
            connection.sendall(_MESSAGE)
            connection.recv(len(_MESSAGE))

        yield round_trip


@contextmanager
def connected(new_loop: NewLoop, port: int) -> Iterator[tuple[asyncio.AbstractEventLoop, asyncio.Transport, _Echoes]]:
    """Connect in a new loop, which does not run while this is entered and left."""
    loop = new_loop()
    transport, echoes = loop.run_until_complete(loop.create_connection(_Echoes, _HOST, port))
    try:
        yield loop, transport, echoes
    finally:
        transport.abort()
        loop.run_until_complete(echoes.lost)
        loop.close()


@contextmanager
def driven(new_loop: NewLoop, port: int) -> Iterator[RoundTrip]:
    """Run the loop in the caller's thread until the echo is there."""
    with connected(new_loop, port) as (loop, transport, echoes):
        echoes.on_echo = loop.stop

        def round_trip() -> None:
            loop.call_soon(transport.write, _MESSAGE)
            loop.run_forever()

        yield round_trip


@contextmanager
def handed_over(new_loop: NewLoop, port: int) -> Iterator[RoundTrip]:
    """Let a thread run the loop, hand it the message, and sleep until it has the echo."""
    with connected(new_loop, port) as (loop, transport, echoes):
        has_echo = threading.Lock()
        has_echo.acquire()
        echoes.on_echo = has_echo.release
        thread = threading.Thread(target=loop.run_forever)
        thread.start()

        def round_trip() -> None:
            loop.call_soon_threadsafe(transport.write, _MESSAGE)
            has_echo.acquire()

        try:
            yield round_trip
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


LOOPS: dict[str, NewLoop] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def measure_all(port: int, count: int, rounds: int) -> dict[str, list[Cost]]:
    """Measure each way, in alternation."""
    costs: dict[str, list[Cost]] = {}
    for _ in range(rounds):
        with blocking(port) as round_trip:
            costs.setdefault("blocking socket", []).append(measure(round_trip, count))
        for name, new_loop in LOOPS.items():
            with driven(new_loop, port) as round_trip:
                costs.setdefault(f"{name}, run by the caller", []).append(measure(round_trip, count))
            with handed_over(new_loop, port) as round_trip:
                costs.setdefault(f"{name}, run by a thread", []).append(measure(round_trip, count))
    return costs


# ---- the server -------------------------------------------------------------------------------------------------


def _serve(port_to: Connection) -> None:
    with socket.create_server((_HOST, 0)) as server:
        port_to.send(server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _echo_all(connection)


def _echo_all(connection: socket.socket) -> None:
    with connection:
        try:
            while received := connection.recv(65536):
                connection.sendall(received)
        except ConnectionResetError:  # the client has aborted
            return


@contextmanager
def echo_server() -> Iterator[int]:
    """Start the server, and yield its port."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    server.start()
    try:
        yield here.recv()
    finally:
        server.terminate()
        server.join()


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="What a caller pays for a thread between itself and a socket.")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measurements of each way (default: 5)")
    parser.add_argument("--count", type=int, default=3_000, metavar="N", help="round trips of each (default: 3000)")
    arguments = parser.parse_args()
    costs: dict[str, list[Cost]] = {}

    def run() -> None:  # not in the main thread, where uvloop handles signals
        costs.update(measure_all(port, arguments.count, arguments.rounds))

    with echo_server() as port:
        caller = threading.Thread(target=run)
        caller.start()
        caller.join()
    table = Table("way", "p50 µs", "CPU µs", "sleeps", title="A round trip of 100 bytes")
    for way, measured in costs.items():
        medians = [statistics.median(values) for values in zip(*measured, strict=True)]
        table.add_row(way, f"{medians[0]:.0f}", f"{medians[1]:.0f}", f"{medians[2]:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
