"""A driver with a Delta or Iceberg table in a process of its own, without Spark, that is killed as processes can be."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from spark_sink.driver.protocol import Sink
from spark_sink.handoff import TaskIdentity
from spark_sink.options import parse
from spark_sink.pause_points import PausePoint

SCHEMA: Final = pa.schema([("value", pa.string())])
QUERY: Final = "query"
_PARTITIONS: Final = 2
_ROWS: Final = 3


@dataclass(frozen=True)
class Drive:
    """One life of a driver. It goes on with the first batch that is not in the commit log, as Spark does."""

    options: Mapping[str, str]
    commit_log: Path
    """How many batches are done: Spark's commit log."""
    until: int
    """How many batches are to be done at the end."""
    kill_at: int | PausePoint | None
    """The pause point at which it kills itself, by name or counted from its start."""
    environment: Mapping[str, str]
    """Additional variables of its environment."""

    def run(self) -> None:
        """Live, to the end or to the kill."""
        os.environ.update(self.environment)
        passed = itertools.count(1)

        def pause(point: PausePoint) -> None:
            if self.kill_at in (next(passed), point):
                os.kill(os.getpid(), signal.SIGKILL)

        sink = Sink.open(parse(self.options), pause=pause)
        while (batch := done(self.commit_log)) < self.until:
            _write_batch(sink, batch)
            partial = self.commit_log.with_suffix(".partial")
            partial.write_text(str(batch + 1))
            partial.replace(self.commit_log)


def _write_batch(sink: Sink, batch: int) -> None:
    plan = sink.plan(SCHEMA, query_id=QUERY)
    results = []
    for partition in range(_PARTITIONS):
        values = values_of(batch)[partition::_PARTITIONS]
        task = TaskIdentity(QUERY, batch, partition, partition, "here")
        results.append(sink.write(plan, task, iter([pa.record_batch({"value": values})])))
    sink.commit(results, query_id=QUERY, batch_id=batch, offsets_digest=f"input-{batch}")


def values_of(batch: int) -> list[str]:
    """Return the rows of a batch."""
    count = _PARTITIONS * _ROWS
    return [str(value) for value in range(batch * count, (batch + 1) * count)]


def done(commit_log: Path) -> int:
    """Return how many batches are in the commit log."""
    return int(commit_log.read_text()) if commit_log.exists() else 0
