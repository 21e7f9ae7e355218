"""The log of one Delta table on a file system: read, appended to, and flushed to disk. The only user of deltalake."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import pyarrow as pa

from spark_sink.errors import SinkError, SinkOptionError
from spark_sink.lake.columns import LakeColumns
from spark_sink.lake.delta_names import names_in_log
from spark_sink.lake.delta_support import DeltaTraits, why_unsupported
from spark_sink.lake.files import flush_directory, flush_file, library_missing
from spark_sink.lake.place import LakePlace
from spark_sink.lake.table_log import LakeState, Mark, NewFile

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_READ_TRIES: Final = 10
_LATE: Final = re.compile(r"Failed to commit transaction: \d+")
"""The library's message if another writer has taken the version, with the number of its own retries."""
_BUSY: Final = "other writers keep committing to it"
_MARKS: Final = ("/owner", "", "/batch")
"""Suffixes of the sink's id, which has no slash, in the application ids of the parts of a mark."""
_WRITER_VERSIONS: Final = (1, 2, 3, 4, 5, 7)
"""The writer versions that deltalake commits to: 6 has identity columns, and 7 names its features."""


class DeltaLog:
    """The table in a directory, as one sink sees it; a `TableLog`."""

    def __init__(self, place: LakePlace, sink_id: str) -> None:
        self._place = place
        self._directory = str(place.directory)
        self._sink_id = sink_id
        self._log = Path(self._directory, _LOG)
        self._flushed = _Flushed()
        """The newest commit that this object has flushed."""

    def read(self) -> LakeState:
        """See `TableLog.read`. Reads the table again if another writer changes it or cleans it up meanwhile."""
        deltalake = self._library()
        for _ in range(_READ_TRIES - 1):
            before = self._names()
            try:
                return self._read(deltalake)
            except SinkOptionError:
                raise
            except SinkError:
                if self._names() == before:
                    raise
        return self._read(deltalake)

    def _names(self) -> frozenset[str]:
        try:
            return frozenset(each.name for each in self._log.iterdir())
        except OSError:
            return frozenset()

    def _read(self, deltalake: Any) -> LakeState:
        try:
            table = deltalake.DeltaTable(self._directory)
            return self._state(table)
        except deltalake.exceptions.TableNotFoundError as error:
            raise SinkOptionError(
                f"there is no Delta table in {self._directory}, and no new batch has begun. Create it, with "
                "deltalake's DeltaTable.create() or with Spark, or mount its file system on this machine"
            ) from error
        except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
            raise SinkError(
                f"the Delta table in {self._directory} cannot be read ({_line(error)}). Decided batches stay decided, "
                "and are added to it later; no new batch has begun"
            ) from error

    def _state(self, table: DeltaTable) -> LakeState:
        about, protocol = table.metadata(), table.protocol()
        fields = json.loads(table.schema().to_json())["fields"]
        features = protocol.writer_features or ()
        if protocol.min_writer_version not in _WRITER_VERSIONS:
            features = [*features, f"minWriterVersion={protocol.min_writer_version}"]
        traits = DeltaTraits(
            metadata={field["name"]: field["metadata"] for field in fields},
            configuration=about.configuration,
            partition_columns=tuple(about.partition_columns),
            writer_features=frozenset(features),
        )
        return LakeState(
            version=str(table.version()),
            table_id=str(about.id),
            directory=self._directory,
            mark=Mark(*(table.transaction_version(f"{self._sink_id}{each}") for each in _MARKS)),
            columns=LakeColumns(pa.schema(table.schema().to_arrow()), why_unsupported(traits)),
            handle=table,
        )

    def add(self, state: LakeState, mark: Mark, files: Sequence[NewFile]) -> Exception | None:
        """See `TableLog.add`: the version after `state` is tried, and no two commits get the same one."""
        from deltalake import CommitProperties
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, PostCommitHookProperties, Transaction

        now_ms = int(time.time() * 1000)
        actions = [
            AddAction(each.path.name, each.size, {}, now_ms, True, json.dumps({"numRecords": each.rows}))
            for each in files
        ]
        try:
            state.handle.create_write_transaction(
                actions,
                "append",
                state.handle.schema(),
                # The library's own retries would add the files again after a version that has them already.
                commit_properties=CommitProperties(
                    max_commit_retries=0,
                    app_transactions=[
                        Transaction(f"{self._sink_id}{each}", value, now_ms)
                        for each, value in zip(_MARKS, (mark.owner, mark.generation, mark.batch), strict=True)
                        if value is not None
                    ],
                ),
                # Checkpoints are not flushed to disk, so the commits they replace stay until another writer cleans up.
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        except CommitFailedError as error:
            return SinkError(_BUSY) if _LATE.fullmatch(str(error)) else error
        except Exception as error:
            return error
        return None

    def flush(self, state: LakeState) -> bool:
        """See `TableLog.flush`. The versions of a log do not change, so it stays in this state."""
        flushed = self._flushed.version if self._flushed == _Flushed.of(self._log, self._flushed.version) else -1
        try:
            for each in self._log.iterdir():
                commit = _COMMIT.fullmatch(each.name)
                if commit is None or int(commit[1]) > flushed:
                    _flush(each)
            flush_directory(self._log)
        except OSError as error:
            raise SinkError(
                f"the log of the Delta table in {self._directory} cannot be flushed to disk ({error}). The added "
                "files stay owed until then: the next plan tries again"
            ) from error
        self._flushed = _Flushed.of(self._log, int(state.version))
        return True

    def file_names(self, state: LakeState) -> set[str]:
        """See `TableLog.file_names`."""
        deltalake = self._library()
        try:
            return {uri.rpartition("/")[2] for uri in state.handle.file_uris()}
        except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
            raise SinkError(
                f"the data files of the Delta table in {self._directory} cannot be listed ({_line(error)}); no file "
                "was deleted"
            ) from error

    def kept_names(self, state: LakeState) -> set[str]:
        """See `TableLog.kept_names`."""
        return self.file_names(state) | names_in_log(self._log)

    def _library(self) -> Any:
        try:
            import deltalake
            import deltalake.exceptions
        except ImportError as error:
            raise library_missing(self._place) from error
        return deltalake


class _Flushed(NamedTuple):
    """The newest commit that was flushed. Its file tells a log from another one that has replaced it."""

    version: int = -1
    file: int = -1
    changed_ns: int = -1

    @classmethod
    def of(cls, log: Path, version: int) -> Self:
        """Look at the file of a version."""
        try:
            found = Path(log, f"{version:020}.json").stat()
        except OSError:
            return cls()
        return cls(version, found.st_ino, found.st_ctime_ns)


def _flush(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # another writer has cleaned the log up
        flush_file(path)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
