"""The names of data files, and their deletion. Loads no library: commands of operators use it, too."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from spark_sink.errors import SinkOptionError
from spark_sink.store.sink_store import LakeStore

_log = logging.getLogger("spark_sink")


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


class Janitor:
    """Deletes the data files of attempts that are condemned for good."""

    def __init__(self, sink_id: str, ledger: LakeStore) -> None:
        self._sink_id = sink_id
        self._ledger = ledger

    def clean(self) -> int:
        """Delete the files that attempts have recorded; return how many there were."""
        condemned = self._ledger.condemned(self._sink_id)
        gone = [attempt_id for attempt_id, location in condemned.items() if _deleted(location, attempt_id)]
        if gone:
            self._ledger.forget(gone)
        return len(gone)

    def clean_all(self) -> int:
        """Do the same, and delete files that were begun by attempts which recorded none."""
        begun = self._ledger.unrecorded(self._sink_id)
        found = [each for each, location in begun.items() if Path(location, file_name(each)).exists()]
        return self.clean() + sum(_deleted(begun[each], each) for each in found)

    def left(self) -> int:
        """Return how many files `clean_all` would delete."""
        begun = self._ledger.unrecorded(self._sink_id)
        unrecorded = sum(Path(location, file_name(each)).exists() for each, location in begun.items())
        return len(self._ledger.condemned(self._sink_id)) + unrecorded


def _deleted(location: str, attempt_id: str) -> bool:
    """Delete the file of an attempt; return whether it is gone, which a machine without the directory cannot tell."""
    try:
        if not Path(location).is_dir():
            return False
        Path(location, file_name(attempt_id)).unlink(missing_ok=True)
    except OSError as error:
        _log.warning("the data file of the attempt %s in %s was not deleted: %s", attempt_id, location, error)
        return False
    return True
