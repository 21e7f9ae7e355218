"""PLAN, as Spark's driver has it done: a batch is planned once its input is noted, and its columns can be written."""

from __future__ import annotations

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_sink.attempt.record_encoder import check_schema
from spark_sink.driver.checkpoint import Checkpoint
from spark_sink.driver.protocol import Sink
from spark_sink.errors import SinkOptionError
from spark_sink.handoff import Plan, TaskOutcome, TaskResult
from spark_sink.options import SinkOptions


def plan_of(sink: Sink, options: SinkOptions, schema: StructType, *, query_id: str | None) -> Plan:
    """`Sink.plan` with Spark's schema. Raises what that does, and SinkOptionError for columns that cannot be sent."""
    columns = to_arrow_schema(schema, timezone="UTC")
    check_schema(columns, options)
    return sink.plan(columns, query_id=query_id)


def result_of_no_task(outcome: TaskOutcome, plan: Plan, query_id: str, batch_id: int) -> TaskResult:
    """What a task of the batch would have said where none has: the committer goes by the generation in results."""
    return TaskResult(outcome, plan.generation, query_id, batch_id, 0, None, 0, 0)


def check_trigger(checkpoint: Checkpoint) -> None:
    """Refuse triggers other than those of micro-batches, as far as the checkpoint tells.

    With the continuous trigger, Spark drops the rows of sinks in Python without a word: what would write them returns
    an exception instead of raising it. A micro-batch is noted in the checkpoint before it is planned; epochs of that
    trigger and of the real-time one are noted afterwards.
    """
    if checkpoint.is_inside_batch() is False:
        raise SinkOptionError(
            "the continuous and the real-time trigger do not go with this sink: Spark gives their rows to no sink in "
            "Python, or does not note them before; nothing was written. Use a trigger of micro-batches"
        )
