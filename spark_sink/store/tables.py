"""The tables of the commit store on any database: how they are created, and their rows as dataclasses."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from dualwrite.recipes.sqlalchemy.deciding import exact_text
from spark_sink import commands
from spark_sink.errors import SinkError
from spark_sink.handoff import BatchName
from spark_sink.store.attempt_states import AttemptStatus, Claim

SINK_ID_LENGTH: Final = 100
QUERY_ID_LENGTH: Final = 255
_TRANSACTIONAL_ID_LENGTH: Final = 150
"""A sink id, two numbers and two hyphens."""
DETAIL_LENGTH: Final = 1000
_TABLE_ID_LENGTH: Final = 64

_CREATION_TRIES: Final = 10


class StoreTables:
    """The tables of a store, in a schema of the database or in its default one.

    There are no indexes besides the keys: an index is created by a statement of its own, and on MySQL a crash could
    leave a table without it.
    """

    def __init__(self, schema: str | None) -> None:
        self.schema: Final = schema
        self.metadata: Final = sa.MetaData(schema=schema)
        self.sink: Final = self._table(
            "dw_sink",
            sa.Column("sink_id", exact_text(SINK_ID_LENGTH), primary_key=True),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("query_id", exact_text(QUERY_ID_LENGTH), nullable=True),
            _now("updated_at"),
        )
        self.batch: Final = self._table(
            "dw_batch",
            sa.Column("sink_id", exact_text(SINK_ID_LENGTH), primary_key=True),
            sa.Column("query_id", exact_text(QUERY_ID_LENGTH), primary_key=True),
            sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("status", sa.String(12), nullable=False),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("n_attempts", sa.Integer, nullable=False),
            sa.Column("n_records", sa.BigInteger, nullable=False),
            sa.Column("offsets_digest", sa.String(128), nullable=True),
            _now("decided_at"),
            sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
            sa.Column("acknowledged_at", sa.DateTime(timezone=True), nullable=True),
            sa.Column("content_digest", sa.String(128), nullable=True),
        )
        self.attempt: Final = self._table(
            "dw_attempt",
            sa.Column("attempt_id", exact_text(36), primary_key=True),
            sa.Column("sink_id", exact_text(SINK_ID_LENGTH), nullable=False),
            sa.Column("query_id", exact_text(QUERY_ID_LENGTH), nullable=False),
            sa.Column("batch_id", sa.BigInteger, nullable=False),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("partition_id", sa.Integer, nullable=False),
            sa.Column("task_attempt_id", sa.BigInteger, nullable=False),
            sa.Column("host", sa.String(255), nullable=False),
            sa.Column("txn_id", exact_text(_TRANSACTIONAL_ID_LENGTH), nullable=False),
            sa.Column("live_txn_id", exact_text(_TRANSACTIONAL_ID_LENGTH), nullable=True),
            sa.Column("prepared_state", sa.String(64), nullable=False, server_default=""),
            # Where Kafka stored the records of `prepared_state`. NULL: not known.
            sa.Column("manifest", sa.Text, nullable=True),
            sa.Column("n_records", sa.BigInteger, nullable=False, server_default=sa.text("0")),
            sa.Column("status", sa.String(12), nullable=False),
            sa.Column("detail", sa.String(DETAIL_LENGTH), nullable=True),
            _now("created_at"),
            _now("updated_at"),
            # Leases an id to one live attempt, and finds the live attempts. In a terminal attempt the id is NULL, which
            # equals no other value. An id begins with the sink id and ends with two numbers, so no two sinks share one.
            sa.UniqueConstraint("sink_id", "live_txn_id", name="dw_attempt_lease"),
        )
        # Outlives the attempts, which are deleted with their batches.
        self.retired: Final = self._table(
            "dw_retired",
            sa.Column("sink_id", exact_text(SINK_ID_LENGTH), primary_key=True),
            sa.Column("partition_id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("first_slot", sa.Integer, nullable=False),
        )
        self.spare: Final = self._table(
            "dw_spare",
            sa.Column("sink_id", exact_text(SINK_ID_LENGTH), primary_key=True),
            sa.Column("partition_id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("slot", sa.Integer, nullable=False),
        )
        self.lake: Final = self._table(
            "dw_lake",
            sa.Column("sink_id", exact_text(SINK_ID_LENGTH), primary_key=True),
            sa.Column("location", sa.Text, nullable=False),
            sa.Column("table_id", sa.String(_TABLE_ID_LENGTH), nullable=False),
            # Generations: the last one decided with rows for a table of files, and the last one known to be in the
            # table.
            sa.Column("decided", sa.BigInteger, nullable=False),
            sa.Column("published", sa.BigInteger, nullable=True),
        )
        # Outlives the attempts as `dw_retired` does. A row that is decided stays until the table has the file.
        self.lake_file: Final = self._table(
            "dw_lake_file",
            sa.Column("attempt_id", exact_text(36), primary_key=True),
            sa.Column("sink_id", exact_text(SINK_ID_LENGTH), nullable=False),
            sa.Column("query_id", exact_text(QUERY_ID_LENGTH), nullable=False),
            sa.Column("batch_id", sa.BigInteger, nullable=False),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("location", sa.Text, nullable=False),
            sa.Column("table_id", sa.String(_TABLE_ID_LENGTH), nullable=True),
            sa.Column("n_bytes", sa.BigInteger, nullable=False),
            sa.Column("n_rows", sa.BigInteger, nullable=False),
            sa.Column("detail", sa.String(DETAIL_LENGTH), nullable=True),
            _now("created_at"),
            sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        )

        # Numbers that a table of files repeats: of the sink itself, as generation 0, and of each owed batch.
        self.lake_mark: Final = self._table(
            "dw_lake_mark",
            sa.Column("sink_id", exact_text(SINK_ID_LENGTH), primary_key=True),
            sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("mark", sa.BigInteger, nullable=False),
        )

    def _table(self, name: str, *parts: sa.schema.SchemaItem) -> sa.Table:
        # InnoDB, because the server's default may be an engine without transactions.
        return sa.Table(name, self.metadata, *parts, mysql_engine="InnoDB", mariadb_engine="InnoDB")

    def create(self, engine: sa.Engine) -> None:
        """Create missing tables. Safe in several processes at once, or after one that died half-way."""
        for _ in range(_CREATION_TRIES):
            try:
                self.metadata.create_all(engine)
            except (IntegrityError, ProgrammingError, OperationalError):
                # Two processes created a table at the same time. The loser tries again, and creates the tables that the
                # winner has not reached yet: MySQL commits each table separately.
                if self.exist(engine):
                    return
            else:
                return
        self.metadata.create_all(engine)

    def exist(self, engine: sa.Engine) -> bool:
        """Return whether all tables exist."""
        inspector = sa.inspect(engine)
        return all(inspector.has_table(table.name, schema=self.schema) for table in self.metadata.sorted_tables)

    def check(self, engine: sa.Engine) -> None:
        """Raise SinkError if a table is missing."""
        if not self.exist(engine):
            raise missing_tables(self.schema)


def missing_tables(schema: str | None) -> SinkError:
    """Return the error for a database without a commit store."""
    return SinkError(
        "the tables dw_sink, dw_batch, dw_attempt, dw_retired, dw_spare, dw_lake, dw_lake_file and dw_lake_mark are "
        "not all in this database; nothing was written: "
        f"create them with {commands.init_store(schema=schema)}, or let the sink do it (commitStore.createTables=true)"
    )


def _now(name: str) -> sa.Column[dt.datetime]:
    """Return a column with the time of the database's clock, for operators; the protocol does not depend on it."""
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now())


# ---- rows -------------------------------------------------------------------------------------------------------


class BatchStatus(StrEnum):
    """The progress of a decided batch. A batch without a row is not decided."""

    COMMIT = "COMMIT"
    """Decided; not every Kafka transaction is completed."""
    DONE = "DONE"
    LOST = "LOST"
    """Kafka had aborted one of its transactions, and it could not be published again: an operator must act."""


@dataclass(frozen=True)
class SinkRow:
    """One sink, with the generation that may write to it."""

    sink_id: str
    generation: int
    query_id: str | None
    """The query whose checkpoint the sink belongs to; None before the first one, and after batch jobs only."""
    updated_at: dt.datetime


@dataclass(frozen=True)
class BatchRow:
    """One decision."""

    sink_id: str
    query_id: str
    batch_id: int
    status: BatchStatus
    generation: int
    attempts: int
    records: int
    offsets_digest: str | None
    decided_at: dt.datetime
    done_at: dt.datetime | None
    acknowledged_at: dt.datetime | None
    """When an operator allowed the query to go on after a LOST batch."""
    content_digest: str | None = None
    """Digest of the plan of the rows and of their destination, if foreachBatch wrote them."""

    @property
    def is_closed(self) -> bool:
        """Whether no work is left for the batch."""
        return self.status is BatchStatus.DONE or self.acknowledged_at is not None


class BatchInDoubt(NamedTuple):
    """A decided batch that is not completed in Kafka, with the time since its decision, by the database's clock."""

    row: BatchRow
    age_ms: int


@dataclass(frozen=True)
class AttemptRow:
    """One attempt of one task."""

    attempt_id: str
    sink_id: str
    query_id: str
    batch_id: int
    generation: int
    partition_id: int
    task_attempt_id: int
    host: str
    transactional_id: str
    prepared_state: str
    """Empty unless the transaction was prepared."""
    records: int
    status: AttemptStatus
    detail: str | None
    """The response of Kafka, for a LOST attempt."""
    created_at: dt.datetime
    updated_at: dt.datetime


@dataclass(frozen=True)
class Lease:
    """The lease of a task: a row of its own, and a transactional id that no other live attempt has."""

    attempt_id: str
    transactional_id: str


@dataclass(frozen=True)
class Planned:
    """A new generation, with the claims that the older ones left."""

    generation: int | None
    """None if a batch job is decided already."""
    claims: tuple[Claim, ...]
    in_doubt: tuple[BatchInDoubt, ...]
    """The decided batches of these claims."""
    begins_late: bool = False
    """Whether its first task begins it, once that task is known to be of the right query."""
    undecided: BatchName | None = None
    """See `Plan.undecided`."""


@dataclass(frozen=True)
class Decision:
    """A decision for the store to take, from the results of the tasks."""

    sink_id: str
    query_id: str
    batch_id: int
    generation: int | None
    """The generation of all results; None if there is no result."""
    winners: tuple[str, ...]
    """Attempt ids, in the order of their partitions."""
    records: int
    staged_rows: int
    skipped: bool
    """Whether a task found that the batch was already decided."""
    offsets_digest: str | None
    needs_digest: bool = True
    """Whether an already decided batch is taken for this one only if both have the same digest."""
    content_digest: str | None = None
    """See `BatchRow`; it decides nothing here."""


@dataclass(frozen=True)
class Decided:
    """A decision that is durable."""

    anew: bool
    """False if the batch was decided before."""
    records: int
    claims: tuple[Claim, ...] = field(default=())
    """The transactions to complete now: those of the winners, of the losers, and of older attempts."""
    content_digest: str | None = None
    """The digest in the row."""


@dataclass(frozen=True)
class LakeFile:
    """A data file of one attempt."""

    attempt_id: str
    rows: int
    size: int


@dataclass(frozen=True)
class OwedBatch:
    """A decided batch whose files are to be added to a Delta or Iceberg table."""

    sink_id: str
    query_id: str
    batch_id: int
    generation: int
    location: str
    table_id: str
    mark: int | None
    """The table notes it with the batch: no other store has the same generation with the same mark."""
    files: tuple[LakeFile, ...]
    decided_at: dt.datetime
    detail: str | None
    """Why it cannot be added, if that was found; then an operator has to act."""

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class LakeRow:
    """The decisions of a sink for Delta and Iceberg tables."""

    location: str
    table_id: str
    decided: int
    """The newest generation with rows for one."""
    published: int | None
    """The newest generation that the table at `location` is known to have."""


def sink_row(row: sa.Row[Any]) -> SinkRow:
    """Return a row of `dw_sink`."""
    return SinkRow(row.sink_id, row.generation, row.query_id, row.updated_at)


def batch_row(row: sa.Row[Any]) -> BatchRow:
    """Return a row of `dw_batch`."""
    return BatchRow(
        sink_id=row.sink_id,
        query_id=row.query_id,
        batch_id=row.batch_id,
        status=BatchStatus(row.status),
        generation=row.generation,
        attempts=row.n_attempts,
        records=row.n_records,
        offsets_digest=row.offsets_digest,
        decided_at=row.decided_at,
        done_at=row.done_at,
        acknowledged_at=row.acknowledged_at,
        content_digest=row.content_digest,
    )


def attempt_row(row: sa.Row[Any]) -> AttemptRow:
    """Return a row of `dw_attempt`."""
    return AttemptRow(
        attempt_id=row.attempt_id,
        sink_id=row.sink_id,
        query_id=row.query_id,
        batch_id=row.batch_id,
        generation=row.generation,
        partition_id=row.partition_id,
        task_attempt_id=row.task_attempt_id,
        host=row.host,
        transactional_id=row.txn_id,
        prepared_state=row.prepared_state,
        records=row.n_records,
        status=AttemptStatus(row.status),
        detail=row.detail,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
