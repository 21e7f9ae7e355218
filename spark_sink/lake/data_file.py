"""The data file of one attempt: Parquet in a directory of the table, whose log does not name it yet.

Its name has the id of the attempt, so no two attempts write one file, and the number of the sink in its store, so a
store can tell its files from those of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_sink.errors import DualTableError, SinkError
from spark_sink.handoff import FilePlan
from spark_sink.lake.files import file_name, flush_directory, flush_file
from spark_sink.options import DualTable
from spark_sink.store.dual_columns import mapped

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_ROW_GROUP_BYTES: Final = 33_554_432
_SETTINGS: Final[Mapping[str, Any]] = {"compression": "zstd", "store_decimal_as_integer": True}
"""Small decimals are stored as integers, as Iceberg's specification requires."""


class DataFile:
    """The file of one attempt, while its task writes it."""

    def __init__(self, options: DualTable, plan: FilePlan, attempt_id: str) -> None:
        """Take the attempt; the file appears with the first rows."""
        self._options = options
        self._columns = plan.columns
        self._path = Path(plan.directory, file_name(plan.owner, attempt_id))
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self.rows = 0
        self.size = 0
        """In bytes, once the file is complete."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Write the columns of the table. Raises DualTableError for values that it cannot store."""
        self._waiting.append(self._chosen(rows))
        self.rows += rows.num_rows
        if sum(waiting.nbytes for waiting in self._waiting) >= _ROW_GROUP_BYTES:
            try:
                self._write()
            except OSError as error:
                raise self._not_written(error) from error

    def _write(self) -> pq.ParquetWriter:
        """Write the kept rows as one row group."""
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, self._columns, **_SETTINGS)
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._columns))
            self._waiting.clear()
        return self._writer

    def complete(self) -> None:
        """Write the remaining rows, and flush the file and its name to disk."""
        try:
            self._write().close()
            flush_file(self._path)
            flush_directory(self._path.parent)
            self.size = self._path.stat().st_size
        except OSError as error:
            raise self._not_written(error) from error

    def discard(self) -> None:
        """Delete the file of an attempt that can no longer be decided. Never raises."""
        try:
            if self._writer is not None:
                self._writer.close()
            self._path.unlink(missing_ok=True)
        except OSError:
            return  # `dualwrite spark gc` deletes it

    def _not_written(self, error: OSError) -> DualTableError:
        return DualTableError(
            f"the data file {self._path} cannot be written ({error}). No part of the batch is visible; start the query "
            "again when the directory of the table can be written to"
        )

    def _chosen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        targets = mapped(self._options, rows.schema, self._columns.names)
        columns = []
        for field in self._columns:
            column = rows.column(targets[field.name])
            if not field.nullable and column.null_count:
                raise self._refused(f"a row has no {field.name}, which is NOT NULL")
            try:
                columns.append(column.cast(field.type))
            except pa.ArrowInvalid as error:
                raise self._refused(f"a value of {field.name} does not fit ({error})") from error
        return pa.RecordBatch.from_arrays(columns, schema=self._columns)

    def _refused(self, why: str) -> DualTableError:
        return DualTableError(
            f"{self._options.table} cannot store the rows: {why}. No part of the batch is visible; correct the data, "
            "and start the query again"
        )


def rewritten(path: Path, new: Path, columns: Sequence[pa.Field]) -> int:
    """Write the rows of a data file durably to a new one with these columns; return its size in bytes.

    Raises SinkError.
    """
    import pyarrow.parquet as pq

    schema = pa.schema(list(columns))
    try:
        with pq.ParquetFile(path) as file, pq.ParquetWriter(new, schema, **_SETTINGS) as writer:
            for rows in file.iter_batches():
                arrays = [each.cast(column.type) for each, column in zip(rows.columns, columns, strict=True)]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        flush_file(new)
        flush_directory(new.parent)
        return new.stat().st_size
    except (OSError, pa.ArrowInvalid) as error:
        raise SinkError(
            f"the rows of the data file {path} cannot be written for the table as it is now ({error}). Decided "
            "batches stay decided, and are added to the table later; no new batch has begun"
        ) from error


def examined(path: Path, *, size: int, rows: int) -> pa.Schema | str:
    """Return the columns of a data file, or a sentence about how it differs from the file that was written.

    Raises SinkError if neither can be found out.
    """
    import pyarrow.parquet as pq

    try:
        found = path.stat().st_size
        if found != size:
            return f"{path} has {found} bytes, not {size}"
        with pq.ParquetFile(path) as file:
            count, columns = file.metadata.num_rows, file.schema_arrow.remove_metadata()
    except FileNotFoundError:
        return f"{path} is gone"
    except pa.ArrowInvalid as error:
        return f"{path} is damaged ({error})"
    except OSError as error:
        raise SinkError(
            f"the data file {path} cannot be read ({error}). Decided batches stay decided, and are added to the table "
            "later; no new batch has begun"
        ) from error
    return columns if count == rows else f"{path} has {count} rows, not {rows}"
