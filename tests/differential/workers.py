"""Several processes that play sequences on the same two brokers: most of the time of one is waiting."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.differential.comparison import Comparison, Difference
from tests.differential.side import Side


class Task(NamedTuple):
    """Sequences of a seed, by their numbers; nothing is begun after `ends_s` of the monotonic clock."""

    seed: int
    numbers: Sequence[int]
    ends_s: float | None


class Chunk(NamedTuple):
    """What came of a task: differences that this process has not met before, and how often each kind was met."""

    played: int
    found: tuple[Difference, ...]
    known: Counter[str]
    unsteady: Counter[str]


def played(addresses: tuple[str, str], tasks: Iterable[Task], workers: int) -> Iterator[Chunk]:
    """Yield what comes of each task, in no order; the addresses are the emulator's and Apache Kafka's."""
    context = multiprocessing.get_context("spawn")  # a fork of a process with the emulator's thread would be no process
    with context.Pool(workers, _connect, addresses) as pool:
        yield from pool.imap_unordered(_play, tasks)


_comparison: Comparison


def _connect(emulated: str, real: str) -> None:
    global _comparison
    _comparison = Comparison(Side("the emulator", emulated), Side("Apache Kafka", real), f"s{os.getpid():07}n")


def _play(task: Task) -> Chunk:
    found = []
    number = 0
    before, before_unsteady = _comparison.known.copy(), _comparison.unsteady.copy()
    for each in task.numbers:
        if task.ends_s is not None and time.monotonic() > task.ends_s:
            break
        number += 1
        difference = _comparison.compare(f"{task.seed}:{each}")
        if difference is not None:
            found.append(_comparison.shrink(difference))
            _comparison.known[found[-1].about] += 1
    return Chunk(number, tuple(found), _comparison.known - before, _comparison.unsteady - before_unsteady)
