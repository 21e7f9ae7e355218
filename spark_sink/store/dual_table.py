"""The table's part of the dual write: tasks write rows to a staging table, and the decision moves them to the table.

There is one staging table for each sink and target. Its columns have the target's own types, so a value that the target
would refuse or round meets the same rules when a task stages it, long before the decision. Staged rows are not visible
in the target: its readers see the rows of all tasks when the decision is committed, or none of them.

If the target is altered while a batch is running, `move` detects it, after it has locked the target against alterations
and before the decision can be committed. The next batch gets a staging table with matching columns.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, DataError, DBAPIError, IntegrityError, OperationalError, ProgrammingError

from dualwrite.recipes.sqlalchemy.deciding import exact_text, is_conflict
from spark_sink.errors import DualTableError, SinkOptionError
from spark_sink.options import DualMode, DualTable
from spark_sink.store.dual_columns import (
    OWN_COLUMNS,
    check_columns,
    check_key,
    check_only_key,
    check_unique,
    key_of,
    mapped,
    refused,
)
from spark_sink.store.row_transfer import RowMove, copy_in, exact_values
from spark_sink.store.staging_tables import create_staging, mark_owner, truncated
from spark_sink.store.table_catalog import (
    ColumnKind,
    Columns,
    ColumnType,
    TableName,
    as_sql,
    engine_without_transactions,
    parse_table_name,
    quoted_name,
    read_columns,
    unique_keys,
)
from spark_sink.store.transactions import is_unreachable

_ATTEMPT, _PARTITION, _SEQ = OWN_COLUMNS
_READABLE_LENGTH: Final = 30
_CREATION_TRIES: Final = 5
_REFUSALS: Final = (DataError, IntegrityError, OperationalError, ProgrammingError)
_TEXT: Final = ColumnType(ColumnKind.TEXT)
_INTEGER: Final = ColumnType(ColumnKind.INTEGER)


class DualTableWriter:
    """Stages the rows of tasks, and moves those of the winners. Has no connection; picklable; threads may share it."""

    def __init__(
        self, options: DualTable, *, sink_id: str, store_schema: str | None, create_tables: bool = True
    ) -> None:
        """Take the schema of the staging table; without `create_tables` it must exist, with matching columns.

        Raises SinkOptionError if `dual.table` is not a table name.
        """
        target = parse_table_name(options.table)
        if target is None:
            raise refused(
                f"dual.table is {options.table!r}: it must be table or schema.table, each taken literally, and in "
                "double quotes if it has a dot"
            )
        self._options = options
        self._target: Final = target
        self._sink_id = sink_id
        self._staging: Final = TableName(store_schema, _staging_name(sink_id, target))
        self._create_tables = create_tables

    @property
    def staging_table(self) -> str:
        """The name of the staging table, with its schema if that is not the default."""
        return str(self._staging)

    def create(self, engine: sa.Engine, schema: pa.Schema, *, replaces: bool = True) -> None:
        """Make sure that the staging table exists with matching columns. May be repeated, or run in several processes.

        For PLAN, before its transaction: uses a connection of its own, because DDL commits on MySQL. A staging table
        that no longer matches is dropped: its rows belong to attempts that the same PLAN condemns. If it condemns none
        (not `replaces`), the staging table is refused, because a running driver may be using it. Raises SinkOptionError
        if rows of this schema cannot be written to the table; then nothing was changed.
        """
        reason, cause = "commitStore.createTables is false", None
        for _ in range(_CREATION_TRIES):
            with engine.connect() as conn:
                wanted = self._checked(conn, schema)
                staged = self._staged_columns(conn)
                if _type_names(staged) == _type_names(wanted):
                    return
                if not self._create_tables:
                    break
                if staged and not replaces:
                    reason = "the checkpoint cannot be read here, so another driver may be using it: drop it if none is"
                    break
                try:
                    self._create_again(conn, wanted, exists=bool(staged))
                    return
                except DBAPIError as error:  # another process was faster, or we lack the right, as the next try shows
                    reason, cause = str(error.orig), error
        raise refused(
            f"the staging table {self._staging} for {self._options.table} is missing or does not match, and was not "
            f"created ({reason}); a user with the right to do so must create it: {self._ddl(engine.dialect, wanted)}"
        ) from cause

    def stage(
        self,
        conn: sa.Connection,
        attempt_id: str,
        partition_id: int,
        rows: Sequence[pa.RecordBatch],
        *,
        first_seq: int = 0,
    ) -> int:
        """Copy rows into the staging table, in the transaction that marks the attempt PREPARED; return their number.

        The batches have all columns of the DataFrame; this selects those of the table. May be called several times for
        an attempt, each time with the next `first_seq`. Raises DualTableError for values that the table cannot store.
        """
        staged = self._staged_columns(conn)
        key = self._key_that_may_be_null(conn, staged)
        seq = first_seq
        with self._refusals_explained("stage the rows"), exact_values(conn):
            for batch in filter(len, rows):
                own = _own_columns(attempt_id, partition_id, seq, len(batch))
                copy_in(conn, self._staging, own | self._selected(batch, staged, key))
                seq += len(batch)
        return seq - first_seq

    def move(self, conn: sa.Connection, winners: Collection[str], *, rows: int) -> None:
        """Move the winners' rows to the table, in the transaction of the decision, and discard all other rows.

        `rows` is the sum of the winners' `staged_rows`. If several rows of an upsert have the same key, the last one
        counts, in the order of partitions and rows.

        Raises DualTableError if the table refuses the rows, if it was altered after they were staged, or if their
        number is not `rows`. The transaction must then be rolled back.
        """
        staged = self._staged_columns(conn)
        with self._refusals_explained("move the rows into it"):
            found = self._lock_and_count(conn, winners)
        if found != rows:
            raise DualTableError(
                f"{rows} rows were staged for {self._options.table}, but {self._staging} has {found} of them: the "
                "database crashed or failed over, which empties that table, or another driver of this sink has "
                "replaced it. No part of the batch is visible; start the query again, which writes it again"
            )
        with self._refusals_explained("move the rows into it"), exact_values(conn):
            conn.execute(self._move_statement(conn, staged, winners))
        self._assert_unaltered(conn, staged)
        self.discard_all(conn)

    def discard_all(self, conn: sa.Connection) -> None:
        """Delete all staged rows, in the transaction after which no live attempt may stage or win any more.

        A table that has grown is truncated instead, if DELETE would leave dead rows for VACUUM, unless a condemned task
        is just staging rows. Else rows are deleted by attempt id: on MySQL, a DELETE of everything would wait for rows
        that such a task is staging.
        """
        if truncated(conn, self._staging):
            return
        staging = self._staging.clause(_ATTEMPT)
        attempts = conn.scalars(sa.select(staging.c[_ATTEMPT]).distinct()).all()
        if attempts:
            self._delete(conn, attempts)

    def _lock_and_count(self, conn: sa.Connection, winners: Collection[str]) -> int:
        """Return the number of staged rows of the winners, and keep the rows until the transaction ends."""
        staging = self._staging.clause(_ATTEMPT)
        if conn.dialect.name == "postgresql":
            # No process can truncate or replace it now, and a crash that empties it ends this transaction, too.
            conn.execute(sa.text(as_sql(f"LOCK TABLE {self._staging.quoted(conn.dialect)} IN ROW EXCLUSIVE MODE")))
        query = sa.select(sa.func.count()).where(staging.c[_ATTEMPT].in_(list(winners)))
        return int(conn.scalar(query) or 0)

    def _delete(self, conn: sa.Connection, attempt_ids: Collection[str]) -> int:
        staging = self._staging.clause(_ATTEMPT)
        return conn.execute(sa.delete(staging).where(staging.c[_ATTEMPT].in_(list(attempt_ids)))).rowcount

    # ---- the plan ----------------------------------------------------------------------------------------------

    def _checked(self, conn: sa.Connection, schema: pa.Schema) -> Columns:
        """Check the schema and the table; return the columns of the table that get values."""
        options = self._options
        table = read_columns(conn, self._target)
        if not table:
            raise refused(
                f"there is no table {self._target} in the database of the commit store; names are taken literally: "
                "they are case-sensitive, and a schema is given as schema.table"
            )
        check_columns(options, schema, table)
        engine = engine_without_transactions(conn, self._target)
        if engine is not None:
            raise refused(f"{options.table} uses MySQL's engine {engine}, which has no transactions; use InnoDB")
        if conn.dialect.name == "postgresql" and conn.dialect.driver != "psycopg":
            raise refused(f"psycopg copies rows into {options.table}; use a URL that begins with postgresql+psycopg://")
        targets = mapped(options, schema, table)
        if options.mode is DualMode.UPSERT:
            self._check_key(conn, table, targets)
        return {name: table[name] for name in targets}

    def _check_key(self, conn: sa.Connection, table: Columns, targets: Collection[str]) -> None:
        keys = unique_keys(conn, self._target)
        key = key_of(self._options, keys, table)
        check_key(self._options, key, targets)
        check_unique(self._options, key, keys)
        if conn.dialect.name in ("mysql", "mariadb"):
            check_only_key(self._options, key, keys, targets, table)

    def _key(self, conn: sa.Connection, staged: Columns) -> tuple[str, ...]:
        keys = () if self._options.key is not None else unique_keys(conn, self._target)
        return key_of(self._options, keys, staged)

    def _create_again(self, conn: sa.Connection, wanted: Columns, *, exists: bool) -> None:
        if exists:
            conn.execute(sa.text(as_sql(f"DROP TABLE {self._staging.quoted(conn.dialect)}")))
        conn.execute(sa.text(as_sql(self._ddl(conn.dialect, wanted))))
        mark_owner(conn, self._staging, self._sink_id)
        conn.commit()

    def _ddl(self, dialect: sa.Dialect, wanted: Columns) -> str:
        mysql = dialect.name in ("mysql", "mariadb")
        null = " NULL" if mysql else ""  # otherwise a TIMESTAMP would be NOT NULL, and would be updated automatically
        columns = [
            f"{_ATTEMPT} {exact_text(64).compile(dialect=dialect)} NOT NULL",
            f"{_PARTITION} INTEGER NOT NULL",
            f"{_SEQ} BIGINT NOT NULL",
            *[f"{quoted_name(column.name, dialect)} {column.type_sql}{null}" for column in wanted.values()],
            f"PRIMARY KEY ({_ATTEMPT}, {_SEQ})",
        ]
        return create_staging(dialect, self._staging, columns, self._sink_id)

    # ---- the tasks ---------------------------------------------------------------------------------------------

    def _staged_columns(self, conn: sa.Connection) -> Columns:
        """Return the columns of the staging table, without those that the sink adds."""
        columns = read_columns(conn, self._staging)
        return {name: column for name, column in columns.items() if name not in OWN_COLUMNS}

    def _key_that_may_be_null(self, conn: sa.Connection, staged: Columns) -> tuple[str, ...]:
        """Return the key columns that need a check for NULL: only in SQLite may a primary key be NULL."""
        if self._options.mode is DualMode.INSERT or not staged:
            return ()
        if self._options.key is None and conn.dialect.name != "sqlite":
            return ()
        return self._key(conn, staged)

    def _selected(
        self, batch: pa.RecordBatch, staged: Columns, key: Collection[str]
    ) -> dict[str, tuple[pa.Array, ColumnType]]:
        if not staged:
            raise DualTableError(f"the staging table {self._staging} no longer exists; start the query again")
        targets = self._targets(batch.schema, staged)
        self._assert_key_is_there(batch, targets, key)
        return {name: (batch.column(index), staged[name].type) for name, index in targets.items()}

    def _targets(self, schema: pa.Schema, staged: Columns) -> dict[str, int]:
        other = (
            f"the staging table {self._staging} has other columns ({', '.join(staged)}) than these rows: another "
            "driver of this sink has replaced it"
        )
        try:
            targets = mapped(self._options, schema, staged)
        except SinkOptionError as error:
            raise DualTableError(other) from error
        if targets.keys() != staged.keys():
            raise DualTableError(other)
        return targets

    def _assert_key_is_there(self, batch: pa.RecordBatch, targets: Mapping[str, int], key: Collection[str]) -> None:
        for name in key:
            if batch.column(targets[name]).null_count:
                raise DualTableError(
                    f"a row for {self._options.table} has no {name}, a key column of the upsert: NULL equals nothing, "
                    "so the row would be inserted again each time; filter such rows"
                )

    # ---- the decision ------------------------------------------------------------------------------------------

    def _move_statement(self, conn: sa.Connection, staged: Columns, winners: Collection[str]) -> sa.TextClause:
        moving = RowMove(conn.dialect, self._target, self._staging, list(staged), OWN_COLUMNS)
        if self._options.mode is DualMode.INSERT:
            return moving.insert(winners)
        return moving.upsert(winners, self._key(conn, staged))

    def _assert_unaltered(self, conn: sa.Connection, staged: Columns) -> None:
        """Raise DualTableError if the table was altered. The insert has locked it, so it can no longer change."""
        table = read_columns(conn, self._target)
        for name, column in staged.items():
            if name not in table or table[name].type_sql != column.type_sql:
                now = table[name].type_sql if name in table else "dropped"
                raise DualTableError(
                    f"the column {name} of {self._options.table} was {column.type_sql} when the rows were staged, and "
                    f"is {now} now. No part of the batch is visible; start the query again, which adapts to the table"
                )

    @contextmanager
    def _refusals_explained(self, purpose: str) -> Iterator[None]:
        try:
            yield
        except _REFUSALS as error:
            if isinstance(error, OperationalError) and (is_unreachable(error) or is_conflict(error)):
                raise
            raise DualTableError(
                f"the database refuses to {purpose} of dual.table={self._options.table}: {_first_line(error)}. Nothing "
                "of the batch is visible; correct the data or the table, and start the query again"
            ) from error


def _own_columns(
    attempt_id: str, partition_id: int, first_seq: int, rows: int
) -> dict[str, tuple[pa.Array, ColumnType]]:
    return {
        _ATTEMPT: (pa.repeat(attempt_id, rows), _TEXT),
        _PARTITION: (pa.repeat(partition_id, rows), _INTEGER),
        _SEQ: (pa.array(range(first_seq, first_seq + rows)), _INTEGER),
    }


def _first_line(error: DatabaseError) -> str:
    """Return the database's message, with the column, which PostgreSQL names only in the context of a COPY."""
    sentence = str(error.orig).strip().splitlines()[0]
    context = getattr(getattr(error.orig, "diag", None), "context", None) or ""
    column = re.search(r"^COPY .*?, line \d+, column (.+?)(?::|$)", context)
    return sentence if column is None else f"{sentence} (column {column[1]})"


def _type_names(columns: Columns) -> dict[str, str]:
    return {name: column.type_sql for name, column in columns.items()}


def _staging_name(sink_id: str, target: TableName) -> str:
    """Return a readable name of at most 63 characters, PostgreSQL's limit, that is unique to the sink and target."""
    readable = re.sub(r"[^a-z0-9_]", "_", target.name.lower())[:_READABLE_LENGTH]
    digest = hashlib.sha256(repr((sink_id, target.schema, target.name)).encode()).hexdigest()[:12]
    return f"dw_stage_{readable}_{digest}"
