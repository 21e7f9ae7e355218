"""Processes that play sequences on the same two brokers: most of the time of one is waiting."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from typing import Any, Final, NamedTuple

from tests.differential.comparison import Comparison, Difference
from tests.differential.side import Side

Addresses = tuple[str, str]
"""The addresses of the emulator and of Apache Kafka."""
_STUCK_AFTER_S: Final = 600.0
"""A sequence takes seconds; one that differs is played some dozens of times."""
_LOOK_EVERY_S: Final = 1.0
_ATTEMPTS: Final = 2
_MOST_FAILURES_ON_END: Final = 10
"""So many failures without a result in between are not the fault of sequences."""


class Order(NamedTuple):
    """A sequence to play, by its seed."""

    seed: str
    known: frozenset[str] = frozenset()
    """The kinds of difference that have been reported already."""
    shrinks: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a sequence."""

    seed: str
    found: Difference | None = None
    """A difference of a new kind."""
    known: Mapping[str, int] = field(default_factory=dict)
    """How often differences of known kinds were met."""
    unsteady: Difference | None = None
    """A difference that did not repeat."""
    explained: Mapping[str, int] = field(default_factory=dict)
    """How often a row of the page of differences was met."""
    failure: str | None = None
    """The reason for a missing result. A sequence is played again once if its process failed."""
    is_given_up: bool = False


class GivenUpError(Exception):
    """No process comes to a result any more."""


class Player:
    """A process that plays one sequence at a time."""

    def __init__(self, addresses: Addresses) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would have the emulator, without its thread
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_play_all, args=(theirs, addresses), daemon=True)
        self._process.start()
        theirs.close()
        self.order: Order | None = None
        self._since_s = 0.0

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_stuck(self) -> bool:
        """Whether it has been at its sequence for too long."""
        return self.order is not None and time.monotonic() - self._since_s > _STUCK_AFTER_S

    def assign(self, order: Order) -> None:
        """Have it play a sequence."""
        self.order, self._since_s = order, time.monotonic()
        try:
            self.connection.send(order)
        except OSError:  # it has ended: `result` says so
            return

    def result(self) -> Result:
        """Return the result of its sequence; a failure if the process has ended, or fails to end it."""
        assert self.order is not None
        order, self.order = self.order, None
        try:
            if not self.connection.poll():
                return Result(order.seed, failure=f"process {self.pid} was stuck for {_STUCK_AFTER_S:.0f} s")
            result: Result = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(60)
            return Result(order.seed, failure=f"process {self.pid} ended with status {self._process.exitcode}")
        return result

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def played(
    addresses: Addresses, seeds: Iterable[str], workers: int, order_of: Callable[[str], Order], mend: Callable[[], None]
) -> Iterator[Result]:
    """Yield the result of each sequence, in no order.

    A process that fails is replaced after a call of `mend`, and its sequence is played again once. Raises GivenUpError
    if all of them fail.
    """
    players = [Player(addresses) for _ in range(workers)]
    waiting, again = iter(seeds), deque[str]()
    attempts, failures = Counter[str](), 0
    try:
        while True:
            for player in (each for each in players if each.order is None):
                seed = again.popleft() if again else next(waiting, None)
                if seed is not None:
                    player.assign(order_of(seed))
            if all(player.order is None for player in players):
                return
            for index in _done(players):
                result = players[index].result()
                failures = failures + 1 if result.failure else 0
                if result.failure:
                    players[index].end()
                    mend()
                    players[index] = Player(addresses)
                    attempts[result.seed] += 1
                    if attempts[result.seed] < _ATTEMPTS:
                        again.append(result.seed)
                    result = replace(result, is_given_up=attempts[result.seed] >= _ATTEMPTS)
                yield result
                if failures > _MOST_FAILURES_ON_END:
                    raise GivenUpError(f"{failures} processes on end have failed, the last one so: {result.failure}")
    finally:
        for player in players:
            player.end()


def _done(players: list[Player]) -> list[int]:
    """Wait a moment, and return the players that have a result, or will not have one."""
    busy = {player.connection: index for index, player in enumerate(players) if player.order is not None}
    ready: list[Any] = connection.wait(list(busy), _LOOK_EVERY_S)
    stuck = [index for index, player in enumerate(players) if player.is_stuck]
    return sorted({*(busy[each] for each in ready), *stuck})


# --- in the process ---------------------------------------------------------------------------------------------------


def _play_all(orders: connection.Connection[Result, Order], addresses: Addresses) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    comparison: Comparison | None = None
    while True:
        try:
            order = orders.recv()
        except EOFError:
            return
        try:
            comparison = comparison or _compare(*addresses)
            orders.send(_play(comparison, order))
        except Exception:  # its connections may be anywhere: a new process begins anew
            orders.send(Result(order.seed, failure=traceback.format_exc()))
            return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _compare(emulated: str, real: str) -> Comparison:
    return Comparison(Side("the emulator", emulated), Side("Apache Kafka", real), f"s{os.getpid():07}n")


def _play(comparison: Comparison, order: Order) -> Result:
    comparison.known = Counter(dict.fromkeys(order.known, 0))
    comparison.explained = Counter()
    found = comparison.compare(order.seed)
    if found is not None and order.shrinks:
        found = comparison.shrink(found)
    return Result(order.seed, found, dict(+comparison.known), comparison.unsteady, dict(comparison.explained))
