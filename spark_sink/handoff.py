"""The values that the three processes of a query exchange: planner, task workers, committer.

All of them are pickled; none holds a connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_JOB_ID = 0
"""A batch job (`df.write`) without a version is batch 0 of a query named after its `jobId`."""


@dataclass(frozen=True)
class PlanTime:
    """When a batch was planned, for operators: decides nothing."""

    took_s: float
    ended_at_s: float
    """By the clock of the driver's machine, on which the committer runs, too."""


class BatchName(NamedTuple):
    """The name of a batch within its sink."""

    query_id: str
    batch_id: int


@dataclass(frozen=True)
class FilePlan:
    """The data files for tasks to write."""

    location: str
    """The table's location, as the commit store keeps it."""
    directory: str
    owner: int
    """The number in the names of the files, see `LakeStore.owner`."""
    columns: pa.Schema
    """Names, types and field ids, as in the table."""


@dataclass(frozen=True)
class Plan:
    """The result of planning one batch: the fencing token that every task and the committer must present."""

    sink_id: str
    generation: int | None
    """None for a batch job that is decided already: none of its rows are written, so no driver has to be fenced."""
    begins_late: bool = False
    """Whether the first task begins the generation, because the planner does not know its query."""
    time: PlanTime | None = None
    files: FilePlan | None = None
    """Set if rows go to a table of files."""
    undecided: BatchName | None = None
    """The first batch of the query that was undecided when the generation began; None if unknown. Only this generation
    can decide it, or a later one that ends this."""


@dataclass(frozen=True)
class TaskIdentity:
    """One attempt of one task, as Spark names it. None of these fields is a unique key (`attempt_id` is)."""

    query_id: str
    batch_id: int
    partition_id: int
    task_attempt_id: int
    host: str


class TaskOutcome(Enum):
    """How the `write()` of a task ended."""

    PREPARED = "prepared"
    EMPTY = "no rows"
    SKIPPED = "the batch was decided before"


@dataclass(frozen=True)
class TaskResult:
    """The report of a task to the committer."""

    outcome: TaskOutcome
    generation: int | None
    query_id: str
    batch_id: int
    partition_id: int
    attempt_id: str | None
    records: int
    bytes: int
    staged_rows: int = 0
    is_bounded: bool = False
    """Whether the broker aborts the prepared transaction after a time (tiers 3 and 4)."""
    checkpoint_root: str | None = None
    """The session's checkpoint location, which Spark tells the tasks and not the committer."""
    plan_time: PlanTime | None = None

    @classmethod
    def without_attempt(
        cls, outcome: TaskOutcome, plan: Plan, query_id: str, batch_id: int, partition_id: int = 0
    ) -> Self:
        """Make the result of a task that leased no id, or of a batch without tasks.

        The committer takes the generation from the results, so a batch needs at least one.
        """
        return cls(
            outcome, plan.generation, query_id, batch_id, partition_id, None, records=0, bytes=0, plan_time=plan.time
        )
