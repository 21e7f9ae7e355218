"""The log lines about batches: one for each, and a warning if a batch has many transactions."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from spark_sink.handoff import TaskOutcome, TaskResult

if TYPE_CHECKING:
    from spark_sink.driver.protocol import CommitSummary

log = logging.getLogger("spark_sink")

MANY_TRANSACTIONS: Final = 50
"""The number of transactions of one batch above which the time to complete them becomes noticeable."""

_warned_of: set[str] = set()


def configure_worker_logging() -> None:
    """Make the log of this Spark worker process visible: logging is not configured there, so INFO would be lost.

    What the process writes to stderr appears in the log of the driver or executor. If
    `spark.sql.pyspark.worker.logging` captures the log of workers, Spark has added a handler, which is then used.
    """
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)


def log_batch(
    sink_id: str, query_id: str | None, batch_id: int, results: Sequence[TaskResult], summary: CommitSummary
) -> None:
    """Log the line of a batch that was committed."""
    skipped = bool(results) and all(result.outcome is TaskOutcome.SKIPPED for result in results)
    times = summary.times
    prepared = [result for result in results if result.outcome is TaskOutcome.PREPARED]
    log.info(
        "sink %s, batch %d of %s%s: "
        "attempts=%d prepared=%d committed=%d repaired=%d aborted=%d records=%d bytes=%d "
        "plan_ms=%d write_ms=%d decide_ms=%d complete_ms=%d",
        sink_id,
        batch_id,
        query_id,
        ", which was decided before" if skipped else "",
        summary.committed + summary.aborted + summary.unfinished,
        len(prepared),
        summary.committed,
        summary.repaired,
        summary.aborted,
        sum(result.records for result in prepared),
        sum(result.bytes for result in prepared),
        *(seconds * 1000 for seconds in (times.plan_s, times.write_s, times.decide_s, times.complete_s)),
    )
    if len(prepared) > MANY_TRANSACTIONS:
        _warn_of_many(sink_id, len(prepared))


def _warn_of_many(sink_id: str, transactions: int) -> None:
    if sink_id in _warned_of:
        return
    _warned_of.add(sink_id)
    log.warning(
        "sink %s: this batch had %d Kafka transactions, one for each partition with rows. Up to %d are completed fast; "
        "df.coalesce(n) before writeStream reduces their number",
        sink_id,
        transactions,
        MANY_TRANSACTIONS,
    )
