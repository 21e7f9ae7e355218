"""The log lines about batches: one for each, and a warning if a batch has many transactions."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from spark_sink.handoff import BatchName, TaskOutcome, TaskResult

if TYPE_CHECKING:
    from spark_sink.driver.finisher import CommitSummary, Tally
    from spark_sink.store.tables import BatchInDoubt

log = logging.getLogger("spark_sink")

MANY_TRANSACTIONS: Final = 50
"""Above this number of transactions in one batch, the time to complete them becomes noticeable."""

_warned_of: set[str] = set()


def configure_worker_logging() -> None:
    """Make the log of this Spark worker process visible: logging is not configured there, so INFO would be lost.

    Its stderr appears in the log of the driver or executor. If `spark.sql.pyspark.worker.logging` captures the log of
    workers, Spark has added a handler, which is then used.
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
    """Log the line of a committed batch."""
    skipped = bool(results) and all(result.outcome is TaskOutcome.SKIPPED for result in results)
    times = summary.times
    prepared = [result for result in results if result.outcome is TaskOutcome.PREPARED]
    log.info(
        "sink %s, batch %d of %s%s: "
        "attempts=%d prepared=%d committed=%d repaired=%d aborted=%d records=%d bytes=%d table_rows=%d "
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
        sum(result.staged_rows for result in prepared),
        *(seconds * 1000 for seconds in (times.plan_s, times.write_s, times.decide_s, times.complete_s)),
    )
    if len(prepared) > MANY_TRANSACTIONS:
        _warn_of_many(sink_id, len(prepared))


def log_completed(batches: Sequence[BatchInDoubt], tally: Tally, complete_s: float, *, has_table: bool) -> None:
    """Log a line for each batch that an earlier driver decided and a plan completed.

    `has_table`: whether the sink has a table that gets a row for every record.
    """
    for row, age_ms in batches:
        batch = BatchName(row.query_id, row.batch_id)
        log.info(
            "sink %s, batch %d of %s, which was decided %.1f s before this plan: "
            "attempts=%d committed=%d repaired=%d records=%d table_rows=%d complete_ms=%d",
            row.sink_id,
            row.batch_id,
            row.query_id,
            age_ms / 1000,
            row.attempts,
            tally.committed_of.get(batch, 0),
            tally.repaired_of.get(batch, 0),
            row.records,
            row.records if has_table else 0,
            complete_s * 1000,
        )


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
