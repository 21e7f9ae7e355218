"""WRITE: a task writes its partition in the Kafka transaction of one attempt, and puts its rows aside for the table."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from dualwrite.errors import TransactionHangsError
from spark_sink.handoff import Plan, TaskIdentity, TaskOutcome, TaskResult
from spark_sink.options import SinkOptions
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.sink_kafka import SinkKafka, TaskTransaction

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa

    from spark_sink.lake.data_file import DataFile
    from spark_sink.store.dual_table import DualTableWriter
    from spark_sink.store.sink_store import TaskStore
    from spark_sink.store.tables import Lease

_PIECE_BYTES: Final = 33_554_432
"""The size of the pieces in which rows are staged; a producer buffers as much by default."""

_log = logging.getLogger(__name__)


class PartitionWriter:
    """WRITE for one sink."""

    def __init__(
        self, options: SinkOptions, store: TaskStore, kafka: SinkKafka, table: DualTableWriter | None, pause: Pause
    ) -> None:
        self._options = options
        self._sink_id = options.sink_id
        self._policy = options.on_new_checkpoint
        self._store = store
        self._kafka = kafka
        self._table = table
        self._pause = pause

    def write(self, plan: Plan, task: TaskIdentity, rows: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write one partition; see `Sink.write`."""
        if plan.generation is None:
            return _without_attempt(TaskOutcome.SKIPPED, plan, task)
        if plan.begins_late:
            discard = None if self._table is None else self._table.discard_all
            self._store.begin(self._sink_id, plan.generation, task.query_id, self._policy, discard)
        if not _is_undecided(plan, task) and self._store.is_decided_for(
            self._sink_id, plan.generation, task, self._policy
        ):
            return _without_attempt(TaskOutcome.SKIPPED, plan, task)
        filled = (batch for batch in rows if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return _without_attempt(TaskOutcome.EMPTY, plan, task)
        lease = self._store.lease(self._sink_id, plan.generation, task)
        if lease is None:
            return _without_attempt(TaskOutcome.SKIPPED, plan, task)
        self._pause(PausePoint.AFTER_LEASE)
        return self._write_leased(plan, task, lease, first, filled)

    def _write_leased(
        self, plan: Plan, task: TaskIdentity, lease: Lease, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]
    ) -> TaskResult:
        aside = self._rows_aside(plan, lease, task)
        transaction = self._kafka.open(lease.transactional_id, lambda: self._still_mine(lease))
        try:
            self._pause(PausePoint.AFTER_INIT)
            self._send(transaction, aside, first)
            for batch in others:
                self._send(transaction, aside, batch)
            self._prepare(transaction, aside, lease)
        except BaseException as error:
            if isinstance(error, TransactionHangsError):
                _log.error("%s", error)  # the next try leases another id, and writes behind it
            transaction.abort()
            if aside is not None:
                aside.discard()
            raise
        finally:
            transaction.close()
        self._pause(PausePoint.AFTER_PREPARED)
        return TaskResult(
            outcome=TaskOutcome.PREPARED,
            generation=plan.generation,
            query_id=task.query_id,
            batch_id=task.batch_id,
            partition_id=task.partition_id,
            attempt_id=lease.attempt_id,
            records=transaction.records,
            bytes=transaction.bytes,
            staged_rows=0 if aside is None else aside.count,
            is_bounded=transaction.is_bounded,
            plan_time=plan.time,
        )

    def _rows_aside(self, plan: Plan, lease: Lease, task: TaskIdentity) -> RowsAside | None:
        if plan.files is not None and self._options.dual is not None:
            from spark_sink.lake.data_file import DataFile

            file = DataFile(self._options.dual, plan.files, lease.attempt_id)
            return RowsInFile(self._store, file, plan.files.location, lease.attempt_id, self._pause)
        if self._table is None:
            return None
        return StagedRows(self._store, self._table, lease.attempt_id, task.partition_id)

    def _still_mine(self, lease: Lease) -> bool:
        self._pause(PausePoint.AFTER_TAKE_OVER)
        mine = self._store.is_open(lease.attempt_id)
        self._pause(PausePoint.BEFORE_COMPLETION)
        return mine

    def _send(self, transaction: TaskTransaction, aside: RowsAside | None, batch: pa.RecordBatch) -> None:
        transaction.write(batch)
        if aside is not None:
            aside.add(batch)
        self._pause(PausePoint.AFTER_SEND)

    def _prepare(self, transaction: TaskTransaction, aside: RowsAside | None, lease: Lease) -> None:
        if aside is not None:
            aside.complete()
        prepared = transaction.prepare()
        self._pause(PausePoint.AFTER_PREPARE)
        self._store.mark_prepared(
            lease.attempt_id,
            prepared,
            records=transaction.records,
            inside=None if aside is None else aside.record,
            last=lambda: self._pause(PausePoint.BEFORE_PREPARED),
        )


def _is_undecided(plan: Plan, task: TaskIdentity) -> bool:
    """Return whether the plan shows that only this generation can decide the batch.

    The lease finds out whether it has been decided, and whether the generation lasts.
    """
    first = plan.undecided
    return first is not None and first.query_id == task.query_id and first.batch_id <= task.batch_id


def _without_attempt(outcome: TaskOutcome, plan: Plan, task: TaskIdentity) -> TaskResult:
    return TaskResult.without_attempt(outcome, plan, task.query_id, task.batch_id, task.partition_id)


class RowsAside(Protocol):
    """The rows of one attempt for the table, invisible to its readers until the decision."""

    @property
    def count(self) -> int:
        """The number of rows, provided that the transaction of `record` was committed."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Put these rows aside, now or later. Raises AttemptCondemnedError, DualTableError."""

    def complete(self) -> None:
        """Make the rows durable, if the transaction of `record` does not, before Kafka's part is prepared."""

    def record(self, connection: sa.Connection) -> None:
        """Record all rows in the transaction that makes the attempt PREPARED, which may be repeated."""

    def discard(self) -> None:
        """Give the rows up, because the attempt has failed. Never raises."""


class RowsInFile:
    """Rows in a data file. The attempt's row names it from `record` on."""

    def __init__(self, store: TaskStore, file: DataFile, location: str, attempt_id: str, pause: Pause) -> None:
        self._store = store
        self._file = file
        self._location = location
        self._attempt_id = attempt_id
        self._pause = pause

    @property
    def count(self) -> int:
        """See `RowsAside.count`."""
        return self._file.rows

    def add(self, rows: pa.RecordBatch) -> None:
        """See `RowsAside.add`."""
        self._file.add(rows)

    def complete(self) -> None:
        """Complete the file, and flush it to disk. Raises DualTableError."""
        self._file.complete()
        self._pause(PausePoint.AFTER_FILE)

    def record(self, connection: sa.Connection) -> None:
        """See `RowsAside.record`."""
        from spark_sink.store.tables import LakeFile

        file = LakeFile(self._attempt_id, self._file.rows, self._file.size)
        self._store.lake.record(connection, self._attempt_id, self._location, file)

    def discard(self) -> None:
        """Delete the file: the task reports no result, so the attempt cannot win."""
        self._file.discard()


class StagedRows:
    """The rows of one attempt on their way into the staging table, in pieces that fit into memory.

    Each piece is staged when it is full, in a transaction in which the attempt is OPEN. The last one is staged in the
    transaction that makes the attempt PREPARED. Readers of the table see none of them before the decision.
    """

    def __init__(self, store: TaskStore, table: DualTableWriter, attempt_id: str, partition_id: int) -> None:
        self._store = store
        self._table = table
        self._attempt_id = attempt_id
        self._partition_id = partition_id
        self._waiting: list[pa.RecordBatch] = []
        self._committed = 0
        self._in_transaction = 0

    @property
    def count(self) -> int:
        """The number of rows staged, provided that the transaction of the last piece was committed."""
        return self._committed + self._in_transaction

    def add(self, rows: pa.RecordBatch) -> None:
        """Keep these rows; stage all kept rows once they fill a piece. Raises AttemptCondemnedError, DualTableError."""
        self._waiting.append(rows)
        if sum(waiting.nbytes for waiting in self._waiting) >= _PIECE_BYTES:
            self._store.stage(self._attempt_id, self.record)
            self._committed, self._in_transaction = self.count, 0
            self._waiting.clear()

    def complete(self) -> None:
        """Do nothing: `record` stages the kept rows."""

    def discard(self) -> None:
        """Do nothing: the next plan or decision deletes the rows."""

    def record(self, connection: sa.Connection) -> None:
        """Stage the kept rows in this transaction, which may be repeated. Raises DualTableError."""
        if self._waiting:
            self._in_transaction = self._table.stage(
                connection, self._attempt_id, self._partition_id, self._waiting, first_seq=self._committed
            )
