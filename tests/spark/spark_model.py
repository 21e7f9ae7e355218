"""A model of Spark as a sink sees it: batches, retried tasks, a checkpoint, and killed processes.

A query runs until all its batches are in Spark's own commit log. After every crash it starts again with the same batch
ids and the same input, but with another number of partitions, as Spark may do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from dualwrite.errors import KafkaError
from spark_sink.errors import SinkError
from spark_sink.handoff import Plan, TaskResult
from spark_sink.pause_points import Pause, PausePoint
from tests.spark.sink_model import Crash, Process, World, partitioned

ResultT = TypeVar("ResultT")

TASK_TRIES = 2


class Killed(Enum):
    """The kind of process that a crash kills."""

    WORKER = "the Python worker: Spark tries a task again, and aborts a batch that it cannot commit"
    APPLICATION = "driver and executors"


@dataclass
class Crashes:
    """Kills the process that reaches a pause point for the n-th time, for each n in `at`; counts them all."""

    at: Sequence[int] = ()
    count: int = 0
    struck: list[PausePoint] = field(default_factory=list)

    def reach(self, point: PausePoint) -> None:
        self.count += 1
        if self.count in self.at:
            self.struck.append(point)
            raise Crash(point)


class _ApplicationDiedError(Exception):
    pass


class Query:
    """A streaming query into `world`; `batches` is its input."""

    def __init__(
        self,
        world: World,
        batches: Sequence[Sequence[int]],
        reach: Pause | None = None,
        killed: Killed = Killed.APPLICATION,
        *,
        committed: int = 0,
    ) -> None:
        """`reach` is called by its processes at every pause point, and may raise Crash there."""
        self._world = world
        self._batches = batches
        self._reach = reach
        self._killed = killed
        self._starts = 0
        self.committed = committed
        """Spark's own commit log."""

    def run(self, *, starts: int = 10) -> Query:
        """Start the query repeatedly until all batches are committed. An error of the sink ends a run, too."""
        while self.committed < len(self._batches):
            self._starts += 1
            assert self._starts <= starts, "the query does not come to its end"
            try:
                self._run_batch(self.committed)
            except _ApplicationDiedError:
                continue
            except (SinkError, KafkaError):
                if self._starts == starts:
                    raise
                continue
            self.committed += 1
        return self

    def _run_batch(self, batch_id: int) -> None:
        values = self._batches[batch_id]
        plan = self._in_process(Process.plan)
        if plan is None:
            raise _ApplicationDiedError
        parts = partitioned(values, 1 + self._starts % 3)
        results = [self._write(plan, batch_id, number, part) for number, part in enumerate(parts)]
        delivered = [result for result in results if result is not None]
        if len(delivered) < len(results) or not self._commit(delivered, batch_id, values):
            self._in_process(lambda process: process.abort(delivered, batch_id))
            raise _ApplicationDiedError

    def _write(self, plan: Plan, batch_id: int, partition: int, values: Sequence[int]) -> TaskResult | None:
        for _ in range(TASK_TRIES):
            result = self._in_process(lambda process: process.write(plan, batch_id, partition, values))
            if result is not None:
                return result
        return None

    def _commit(self, results: Sequence[TaskResult], batch_id: int, values: Sequence[int]) -> bool:
        return self._in_process(lambda process: process.commit(results, batch_id, values)) is not None

    def _in_process(self, call: Callable[[Process], ResultT]) -> ResultT | None:
        """Return the result, or None if the process was killed."""
        try:
            return call(self._world.process(self._reach))
        except Crash as crash:
            if self._killed is Killed.APPLICATION:
                raise _ApplicationDiedError from crash
            return None
