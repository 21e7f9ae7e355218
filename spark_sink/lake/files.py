"""The names of data files. Loads no library: commands of operators use it, too."""

from __future__ import annotations

import os
from pathlib import Path

from spark_sink.errors import SinkOptionError


def file_name(attempt_id: str) -> str:
    """Return the name of the file of an attempt; no engine hides names that begin like this."""
    return f"dualwrite-{attempt_id}.parquet"


def flush_directory(directory: Path) -> None:
    """Make the names in a directory survive a crash of the machine."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def library_missing() -> SinkOptionError:
    """Return the error for a process that cannot read Delta tables."""
    return SinkOptionError(
        "dual.table names a Delta table, for which the package deltalake is missing here, and nothing new has begun: "
        "pip install 'dualwrite[spark-delta]', on the driver and wherever `dualwrite spark recover` runs"
    )
