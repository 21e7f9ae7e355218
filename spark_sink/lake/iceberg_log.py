"""One Iceberg table of a SQL catalog: read, appended to, and flushed to disk.

Its metadata files never change, so the one that was read need not be read again while it is the current one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_sink.errors import SinkError, SinkOptionError
from spark_sink.lake.columns import LakeColumns
from spark_sink.lake.files import flush_directory, flush_file, library_missing
from spark_sink.lake.iceberg_pointer import TablePointer
from spark_sink.lake.iceberg_support import IcebergTraits, local_path, why_unsupported
from spark_sink.lake.place import LakePlace
from spark_sink.lake.table_log import LakeState, Mark, NewFile

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

_MARKS: Final = ("owner", "generation", "batch")
"""The ends of the names of the properties that are the parts of a mark."""
_SMALL: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
"""The Arrow types that pyiceberg uses for Iceberg's types, with those of Spark's rows and our files."""


class IcebergLog:
    """The table of a catalog, as one sink sees it; a `TableLog`."""

    def __init__(self, place: LakePlace, sink_id: str) -> None:
        """`place.catalog` is set. Raises SinkOptionError for a catalog that cannot be used."""
        if place.catalog is None:
            raise ValueError(f"{place} is not an Iceberg table")
        self._place = place
        self._sink_id = sink_id
        self._pointer = TablePointer(place, place.catalog)
        self._last: LakeState | None = None
        self._flushed: frozenset[Path] = frozenset()
        """The metadata files of the newest state that this object has flushed."""

    def read(self) -> LakeState:
        """See `TableLog.read`."""
        pyiceberg = self._library()
        location = self._current()
        while True:
            path = self._local(location)
            try:
                return self._state(location, path)
            except FileNotFoundError as error:
                gone, location = location, self._current()
                if location == gone:
                    raise SinkOptionError(
                        f"there is no metadata file {gone} of {self._place.named}, though its catalog names it, and "
                        "no new batch has begun: mount its file system on this machine"
                    ) from error
            except (OSError, ValueError, pyiceberg.exceptions.ValidationError) as error:
                raise SinkError(
                    f"the metadata file {location} of {self._place.named} cannot be read ({_line(error)}). Decided "
                    "batches stay decided, and are added to it later; no new batch has begun"
                ) from error

    def _library(self) -> Any:
        try:
            import pyiceberg.exceptions
            import pyiceberg.table
        except ImportError as error:
            raise library_missing(self._place) from error
        return pyiceberg

    def _current(self) -> str:
        location = self._pointer.read()
        if location is None:
            raise SinkOptionError(
                f"there is no Iceberg table {self._place.table} in its catalog, and no new batch has begun. Create it, "
                "with pyiceberg's create_table() or with Spark; dual.catalog.name must be the catalog's name there"
            )
        return location

    def _local(self, location: str) -> Path:
        path = local_path(location)
        if path is None:
            raise SinkOptionError(
                f"{self._place.named} is in {location}, and no new batch has begun. Driver and executors must have it "
                "in one directory under the same path; object stores (s3:, abfss:, gs:, hdfs:) are not supported"
            )
        return path

    def _state(self, location: str, path: Path) -> LakeState:
        path.stat()  # a directory that is not mounted must not be mistaken for one whose data files are gone
        if self._last is None or self._last.version != location:
            self._last = self._parsed(location)
        return self._last

    def _parsed(self, location: str) -> LakeState:
        from pyiceberg.io.pyarrow import PyArrowFileIO
        from pyiceberg.serializers import FromInputFile

        metadata = FromInputFile.table_metadata(PyArrowFileIO({}).new_input(location))
        unsupported = why_unsupported(_traits(metadata))
        return LakeState(
            version=location,
            table_id=str(metadata.table_uuid),
            directory=f"{str(local_path(metadata.location)).removesuffix('/')}/data",
            mark=Mark(*(_number(metadata.properties.get(self._property(each))) for each in _MARKS)),
            columns=LakeColumns(_columns(metadata.schema()) if unsupported is None else pa.schema([]), unsupported),
            handle=metadata,
        )

    def _property(self, part: str) -> str:
        return f"dualwrite.{self._sink_id}.{part}"

    def add(self, state: LakeState, mark: Mark, files: Sequence[NewFile]) -> Exception | None:
        """See `TableLog.add`: the catalog's pointer is moved only from the metadata file of `state`."""
        from spark_sink.lake.iceberg_commit import append

        parts = zip(_MARKS, (mark.owner, mark.generation, mark.batch), strict=True)
        try:
            append(
                self._pointer,
                tuple(str(self._place.table).split(".")),
                state.handle,
                state.version,
                files,
                properties={self._property(part): str(value) for part, value in parts if value is not None},
                summary={}
                if mark.generation is None
                else {"dualwrite.sink-id": self._sink_id, "dualwrite.generation": str(mark.generation)},
            )
        except Exception as error:
            return error
        return None

    def flush(self, state: LakeState) -> bool:
        """See `TableLog.flush`: first the files that the pointer leads to, then the pointer, in the catalog.

        A failover of the catalog's database may have lost the commit that was read.
        """
        try:
            needed = frozenset(self._metadata_files(state))
            for path in needed - self._flushed:
                flush_file(path)
            for directory in {path.parent for path in needed}:
                flush_directory(directory)
        except (OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and self._pointer.read() != state.version:
                return False  # another writer has committed, and removed files that are not needed any more
            raise SinkError(
                f"the metadata of {self._place.named} cannot be flushed to disk ({_line(error)}). The added files "
                "stay owed until then: the next plan tries again"
            ) from error
        if self._pointer.read_durably() != state.version:
            return False
        self._flushed = needed
        return True

    def _metadata_files(self, state: LakeState) -> Iterator[Path]:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        yield _path(state.version)
        snapshot: Snapshot | None = state.handle.current_snapshot()
        if snapshot is not None:
            yield _path(snapshot.manifest_list)
            yield from (_path(manifest.manifest_path) for manifest in snapshot.manifests(PyArrowFileIO({})))

    def file_names(self, state: LakeState) -> set[str]:
        """See `TableLog.file_names`: of the main branch, and of every other one and every tag."""
        metadata: TableMetadata = state.handle
        snapshots = [metadata.snapshot_by_id(ref.snapshot_id) for ref in metadata.refs.values()]
        return self._names([each for each in snapshots if each is not None], removed=False)

    def kept_names(self, state: LakeState) -> set[str]:
        """See `TableLog.kept_names`: of every snapshot that is not expired."""
        return self._names(state.handle.snapshots, removed=True)

    def _names(self, snapshots: Sequence[Snapshot], *, removed: bool) -> set[str]:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        io: Any = PyArrowFileIO({})
        try:
            manifests = {each.manifest_path: each for found in snapshots for each in found.manifests(io)}
            return {
                entry.data_file.file_path.rpartition("/")[2]
                for manifest in manifests.values()
                for entry in manifest.fetch_manifest_entry(io, discard_deleted=not removed)
            }
        except (OSError, ValueError) as error:
            raise SinkError(
                f"the manifests of {self._place.named} cannot be read ({_line(error)}); no file was deleted"
            ) from error


def _traits(metadata: TableMetadata) -> IcebergTraits:
    schema = metadata.schema()
    return IcebergTraits(
        format_version=metadata.format_version,
        location=metadata.location,
        partition_fields=tuple(field.name for field in metadata.spec().fields),
        sorted_by=tuple(schema.find_column_name(each.source_id) or "?" for each in metadata.sort_order().fields),
        identifier_fields=tuple(sorted(schema.identifier_field_names())),
        properties=metadata.properties,
    )


def _columns(schema: Schema) -> pa.Schema:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.schema([field.with_type(_SMALL.get(field.type, field.type)) for field in schema_to_pyarrow(schema)])


def _number(value: str | None) -> int | None:
    return None if value is None else int(value)


def _path(location: str) -> Path:
    path = local_path(location)
    if path is None:
        raise ValueError(f"{location} is not a file of this machine")
    return path


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
