"""The log of one Delta table on a file system: read, appended to, and flushed to disk. The only user of deltalake."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_sink.errors import SinkError, SinkOptionError
from spark_sink.lake.columns import LakeColumns
from spark_sink.lake.files import flush_directory, library_missing

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_WRITER_VERSIONS: Final = (1, 2, 3, 4, 5, 7)
"""Those that deltalake commits to: 6 has identity columns, and 7 names its features."""


@dataclass(frozen=True)
class LakeState:
    """A Delta table as it was read."""

    version: int
    table_id: str
    published: int | None
    """The generation of the sink's last batch in the table; None if it has none."""
    columns: LakeColumns
    handle: DeltaTable
    """The table at this version, for `add`."""

    def file_names(self) -> set[str]:
        """Return the names of the files that readers of this version read."""
        return {uri.rpartition("/")[2] for uri in self.handle.file_uris()}


@dataclass(frozen=True)
class NewFile:
    """A data file that is to be added."""

    name: str
    size: int
    rows: int


class DeltaLog:
    """The table in a directory, as one sink sees it."""

    def __init__(self, directory: str, sink_id: str) -> None:
        self._directory = directory
        self._sink_id = sink_id
        self._flushed = -1
        """The version up to which this object has flushed the log."""

    def read(self) -> LakeState:
        """Read the newest version. Raises SinkOptionError if there is no table or no library, SinkError otherwise."""
        deltalake = _library()
        try:
            table = deltalake.DeltaTable(self._directory)
            return self._state(table)
        except deltalake.exceptions.TableNotFoundError as error:
            raise SinkOptionError(
                f"there is no Delta table in {self._directory}, and nothing new has begun. Create it, with deltalake's "
                "DeltaTable.create() or with Spark, or mount its file system on this machine"
            ) from error
        except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
            raise SinkError(
                f"the Delta table in {self._directory} cannot be read ({_line(error)}). What is decided stays decided, "
                "and is added to it later; nothing new has begun"
            ) from error

    def _state(self, table: DeltaTable) -> LakeState:
        about, protocol = table.metadata(), table.protocol()
        fields = json.loads(table.schema().to_json())["fields"]
        features = protocol.writer_features or ()
        if protocol.min_writer_version not in _WRITER_VERSIONS:
            features = [*features, f"minWriterVersion={protocol.min_writer_version}"]
        return LakeState(
            version=table.version(),
            table_id=str(about.id),
            published=table.transaction_version(self._sink_id),
            columns=LakeColumns(
                columns=pa.schema(table.schema().to_arrow()),
                metadata={field["name"]: field["metadata"] for field in fields},
                configuration=about.configuration,
                partition_columns=tuple(about.partition_columns),
                writer_features=frozenset(features),
            ),
            handle=table,
        )

    def add(self, state: LakeState, generation: int, files: Sequence[NewFile]) -> Exception | None:
        """Try to add the files in the version after `state`, with the generation; return what went wrong, if anything.

        Only the table read anew says whether it has them: also after an error, and also without one.
        """
        from deltalake import CommitProperties
        from deltalake.transaction import AddAction, PostCommitHookProperties, Transaction

        now_ms = int(time.time() * 1000)
        actions = [
            AddAction(each.name, each.size, {}, now_ms, True, json.dumps({"numRecords": each.rows})) for each in files
        ]
        try:
            state.handle.create_write_transaction(
                actions,
                "append",
                state.handle.schema(),
                # The library's own retries would add the files again after a version that has them already.
                commit_properties=CommitProperties(
                    max_commit_retries=0, app_transactions=[Transaction(self._sink_id, generation, now_ms)]
                ),
                # Checkpoints are not flushed to disk; so what they replace stays until another writer cleans it up.
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        except Exception as error:
            return error
        return None

    def flush(self, state: LakeState) -> None:
        """Make sure that the table as it was read survives a crash of the machine. Raises SinkError."""
        log = Path(self._directory, _LOG)
        try:
            for each in log.iterdir():
                commit = _COMMIT.fullmatch(each.name)
                if commit is None or int(commit[1]) > self._flushed:
                    _flush_file(each)
            flush_directory(log)
        except OSError as error:
            raise SinkError(
                f"the log of the Delta table in {self._directory} cannot be flushed to disk ({error}). What was added "
                "stays owed until it is: the next plan tries it again"
            ) from error
        self._flushed = state.version


def _flush_file(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # another writer has cleaned the log up
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _library() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise library_missing() from error
    return deltalake


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
