"""Durable commits on SQLite, even on a connection with a weaker setting."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

_EXTRA: Final = 3
"""FULL, plus a sync of the directory, without which a commit that deletes its journal can be undone."""

_RAISED: Final = "dualwrite_synchronous"


def raise_synchronous(dbapi_connection: Any, record: Any, proxy: Any) -> None:
    """Raise `PRAGMA synchronous` once per connection, as it leaves its pool: SQLite refuses inside a transaction."""
    if record.info.get(_RAISED):
        return
    cursor = dbapi_connection.cursor()
    try:
        cursor.execute(f"PRAGMA synchronous = {_EXTRA}")
    finally:
        cursor.close()
    record.info[_RAISED] = True


def sync(database_file: str) -> None:
    """Sync writes of a process that was killed during COMMIT before it could sync them.

    These are the log of WAL mode, or the end of the journal: its deletion, or a write to it. SQLite holds no locks on
    either that this could break.
    """
    log = Path(f"{database_file}-wal")
    for path in (log, Path(f"{database_file}-journal"), log.parent):
        if os.name == "posix":
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:  # the journal ends with each transaction, and the log with the last connection
                continue
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
