"""What travels between the three processes of a query: planner, task workers, committer.

All of it is pickled; nothing in here holds a connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

BATCH_JOB_ID = 0
"""A batch job (`df.write`) is batch 0 of a query named after its `jobId`."""


@dataclass(frozen=True)
class Plan:
    """What the planner took for one batch: the fencing token that every task and the committer must show."""

    sink_id: str
    generation: int


@dataclass(frozen=True)
class TaskIdentity:
    """One attempt of one task, as Spark names it. None of it is a unique key (`attempt_id` is)."""

    query_id: str
    batch_id: int
    partition_id: int
    task_attempt_id: int
    host: str


class TaskOutcome(Enum):
    """How a task's `write()` ended."""

    PREPARED = "prepared"
    EMPTY = "no rows"
    SKIPPED = "the batch was decided before"


@dataclass(frozen=True)
class TaskResult:
    """What a task tells the committer."""

    outcome: TaskOutcome
    generation: int
    query_id: str
    batch_id: int
    partition_id: int
    attempt_id: str | None
    records: int
    bytes: int
    staged_rows: int = 0
