"""What makes a commit of SQLite durable, on a connection that may have been told to care less."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

_EXTRA: Final = 3
"""As FULL, and the directory is synced too, without which a commit that deletes its journal can be undone."""

_SEEN: Final = "dualwrite_synchronous"


def raise_synchronous(dbapi_connection: Any, record: Any, proxy: Any) -> None:
    """For a connection that leaves its pool, outside any transaction: inside one SQLite refuses. Once for each."""
    if record.info.get(_SEEN):
        return
    cursor = dbapi_connection.cursor()
    try:
        cursor.execute(f"PRAGMA synchronous = {_EXTRA}")
    finally:
        cursor.close()
    record.info[_SEEN] = True


def sync(database_file: str) -> None:
    """Sync what a process that was killed in the middle of a COMMIT has written and not synced.

    That is the log of WAL mode, or that the journal is gone. SQLite has no locks on either that this could break.
    """
    log = Path(f"{database_file}-wal")
    for path in (log, log.parent):
        if path.exists() and os.name == "posix":
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
