"""One commit to an Iceberg table, based on exactly the metadata file that was read. The adapter to pyiceberg's writers.

pyiceberg's own commit retries by itself, without checking whether the table has the batch already; it compares only the
snapshot of the branch and the table's id with the state that was read; and it flushes nothing to disk.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import Identifier, Record

from spark_sink.lake.files import flush_directory, flush_file
from spark_sink.lake.iceberg_pointer import TablePointer
from spark_sink.lake.iceberg_support import local_path, scheme_of
from spark_sink.lake.table_log import NewFile

_VERSION: Final = re.compile(r"(\d+)-")
"""The beginning of the name of a metadata file, except in some old tables."""


class StaleError(Exception):
    """The table has another metadata file by now; nothing was changed, and this commit never will change it."""


def append(
    pointer: TablePointer,
    name: Identifier,
    metadata: TableMetadata,
    location: str,
    files: Sequence[NewFile],
    *,
    properties: dict[str, str],
    summary: dict[str, str],
) -> None:
    """Add files, and set properties of the table, if the metadata file at `location` is the current one.

    `summary` goes into the snapshot; without it there is none. Raises StaleError; after any other error the commit may
    have been made, or may be later.
    """
    io = _RecordingIO()
    transaction = _Transaction(Table(name, metadata, location, io, _OneCommit(pointer, io)))
    if summary:
        with transaction.update_snapshot(snapshot_properties=summary).merge_append() as snapshot:
            for file in files:
                snapshot.append_data_file(_data_file(metadata, file))
    transaction.set_properties(properties)
    try:
        transaction.commit_transaction()
    except StaleError:
        io.delete_written()
        raise


def _data_file(metadata: TableMetadata, file: NewFile) -> DataFile:
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        # Written as the table's own location is: procedures that remove orphan files compare names.
        file_path=f"{scheme_of(metadata.location)}{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=file.rows,
        file_size_in_bytes=file.size,
    )
    made.spec_id = metadata.default_spec_id
    return made


class _Transaction(Transaction):
    """Computes its metadata once per change: pyiceberg copies all of it, each snapshot, at every access."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._computed: tuple[tuple[TableUpdate, ...], TableMetadata] = ((), table.metadata)

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the changes so far."""
        if self._computed[0] is not self._updates:
            self._computed = (self._updates, super().table_metadata)
        return self._computed[1]


class _RecordingIO(PyArrowFileIO):
    """Files on this machine; remembers those that were written."""

    def __init__(self) -> None:
        super().__init__({})
        self._written: list[Path] = []

    def new_output(self, location: str) -> PyArrowFile:
        path = local_path(location)
        if path is None:
            raise ValueError(f"{location} is not a file of this machine")
        self._written.append(path)
        return super().new_output(location)

    def flush(self) -> None:
        """Make the written files survive a crash of the machine."""
        for path in self._written:
            flush_file(path)
        for directory in {path.parent for path in self._written}:
            flush_directory(directory)

    def delete_written(self) -> None:
        """Delete the files, to which no commit refers. `remove_orphan_files` deletes any that remain."""
        for path in self._written:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


class _OneCommit(NoopCatalog):
    """The catalog of a pyiceberg transaction: commits from the metadata file that was read, or not at all."""

    def __init__(self, pointer: TablePointer, io: _RecordingIO) -> None:
        super().__init__("dualwrite")
        self._pointer = pointer
        self._io = io

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Write the metadata, flush all written files, and only then move the pointer.

        The metadata that was read meets the requirements, and the pointer is moved only from there.
        """
        old = table.metadata_location
        metadata = update_table_metadata(table.metadata, updates, metadata_location=old)
        new = table.location_provider().new_table_metadata_file_location(_version_after(old))
        ToOutputFile.table_metadata(metadata, self._io.new_output(new))
        self._io.flush()
        if not self._pointer.move(old, new):
            raise StaleError("other writers keep committing to it")
        return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": new})


def _version_after(location: str) -> int:
    found = _VERSION.match(location.rpartition("/")[2])
    return 0 if found is None else int(found[1]) + 1
