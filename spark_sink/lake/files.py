"""The names of data files, and how files are made durable. Loads no library: operators' commands use it, too."""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path
from typing import Final

from spark_sink.errors import SinkError, SinkOptionError
from spark_sink.lake.place import LakePlace

_log = logging.getLogger("spark_sink")

_PREFIX: Final = "dualwrite"
_NAME: Final = re.compile(rf"{_PREFIX}-([0-9a-f]{{16}})-([0-9a-f]{{32}})(?:-[0-9a-f]{{32}})?\.parquet")
_ANY_NAME: Final = re.compile(rf"{_PREFIX}-[0-9a-f-]+\.parquet".encode())
_PACKAGES: Final = {"Delta": ("deltalake", "spark-delta"), "Iceberg": ("pyiceberg", "spark-iceberg")}


def file_name(owner: int, attempt_id: str) -> str:
    """Return the name of the file of an attempt of this sink of this store, one that engines do not hide."""
    return f"{_PREFIX}-{owner:016x}-{attempt_id}.parquet"


def copy_name(owner: int, attempt_id: str, copy: str) -> str:
    """Return the name of a copy of an attempt's file, written for a table that was altered since.

    As long as the store owes the attempt's file, a suspended process may still add the copy.
    """
    return file_name(owner, f"{attempt_id}-{copy}")


def attempt_of(owner: int, name: str) -> str | None:
    """Return the attempt whose rows a file has; None for a file that does not belong to this sink of this store."""
    found = _NAME.fullmatch(name)
    return found[2] if found is not None and int(found[1], 16) == owner else None


def names_in(text: bytes) -> set[str]:
    """Return the names of data files of any sink in a text."""
    return {each.decode() for each in _ANY_NAME.findall(text)}


def deleted(path: Path) -> bool:
    """Delete a data file; return whether it is gone."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("the data file %s was not deleted: %s", path, error)
        return False
    return True


def copy_file(path: Path, directory: Path) -> Path:
    """Copy a file durably to a directory, creating the directory if needed; return the copy. Raises SinkError."""
    copy = directory / path.name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        flush_file(copy)
        flush_directory(directory)
    except OSError as error:
        raise SinkError(f"{path} cannot be copied to {directory} ({error}); it stays owed to its table") from error
    return copy


def flush_file(path: Path) -> None:
    """Make the content of a file survive a crash of the machine. Raises FileNotFoundError, OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_directory(directory: Path) -> None:
    """Make the names in a directory survive a crash of the machine. Raises SinkError if that is impossible."""
    if not hasattr(os, "O_DIRECTORY"):
        raise SinkError(
            f"{directory} cannot be flushed to disk on this operating system, so a crash of the machine could "
            "lose data files of decided batches; nothing was decided. Run the driver and its tasks on Linux or macOS"
        )
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_directory(directory: Path) -> None:
    """Create the directory of data files, if it is missing, in an existing one. Raises SinkError.

    Flushes its name to disk even if it exists: the process that created it may not have flushed it yet.
    """
    try:
        directory.mkdir(exist_ok=True)
        flush_directory(directory.parent)
    except OSError as error:
        raise SinkError(
            f"the directory {directory} for data files cannot be created ({error}), and no new batch has begun: mount "
            "the table's file system on this machine"
        ) from error


def library_missing(place: LakePlace) -> SinkOptionError:
    """Return the error for a process that lacks the library for such tables."""
    package, extra = _PACKAGES[place.kind]
    return SinkOptionError(
        f"dual.table names {place.article} {place.kind} table, for which the package {package} is missing here, and "
        f"no new batch has begun: pip install 'dualwrite[{extra}]', on the driver and wherever `dualwrite spark "
        "recover` runs"
    )
