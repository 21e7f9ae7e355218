"""The data files of sinks that the log of a Delta table names: in commits, checkpoints and their sidecars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from spark_sink.errors import SinkError
from spark_sink.lake.files import names_in

_ROUNDS: Final = 30
_SIDECARS: Final = "_sidecars"
_ACTIONS: Final = ("add", "remove")


def names_in_log(log: Path) -> set[str]:
    """Return the names in the files of the log, also of data files that a version has removed.

    A concurrent cleanup replaces commits by a checkpoint, so new files in the directory are read until there are none.
    Raises SinkError.
    """
    read: set[Path] = set()
    found: set[str] = set()
    try:
        for _ in range(_ROUNDS):
            new = set(_files(log)) - read
            if not new:
                return found
            for each in new:
                found |= _names(each)
            read |= new
    except (OSError, pa.ArrowException) as error:
        raise SinkError(f"the log {log} of a Delta table cannot be read ({error}); no file was deleted") from error
    raise SinkError(f"other writers keep changing the log {log} of a Delta table; no file was deleted")


def _files(log: Path) -> Iterator[Path]:
    for directory in (log, log / _SIDECARS):
        if directory.is_dir():
            yield from (each for each in directory.iterdir() if each.suffix in {".json", ".parquet"})


def _names(path: Path) -> set[str]:
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".json":
            return names_in(path.read_bytes())
        with pq.ParquetFile(path) as checkpoint:
            rows = checkpoint.read(columns=[f"{each}.path" for each in _ACTIONS])
    except FileNotFoundError:
        return set()
    columns = (rows[each] for each in _ACTIONS if each in rows.column_names)
    paths = (row["path"] for column in columns for row in column.to_pylist() if row is not None)
    return {name for path in paths if path is not None for name in names_in(path.encode())}
