"""What a query's checkpoint says about the query: its id, and which input a batch has.

Spark hands neither to a sink's planner and committer, but it hands over `checkpointLocation`, and they run beside the
driver, which writes there. Whoever cannot read it goes without: the query's id is then learned from the tasks, and a
restored older checkpoint is not found out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from importlib import import_module
from pathlib import Path
from typing import Any

_log = logging.getLogger("spark_sink")


class Checkpoint:
    """A checkpoint directory: a local path, or a URL of a file system that fsspec knows, where that is installed."""

    def __init__(self, location: str | None) -> None:
        self._location = location

    def query_id(self) -> str | None:
        """The id that the query keeps over restarts; None where the checkpoint cannot be read."""
        content = self._read("metadata")
        if content is None:
            return None
        try:
            return str(json.loads(content)["id"])
        except (ValueError, LookupError, TypeError):
            _log.warning("%s/metadata is not what Spark writes there; the query id is taken from tasks", self._location)
            return None

    def offsets_digest(self, batch_id: int) -> str | None:
        """A digest of what Spark noted about the input of a batch before it began; None where that cannot be read.

        It is taken of the whole entry, with the time in it: sources such as files write nothing but a counter, which
        says the same of other input. Spark writes the entry once, and a replay reads it.
        """
        content = self._read(f"offsets/{batch_id}")
        return None if content is None else hashlib.sha256(content).hexdigest()

    def is_inside_batch(self) -> bool | None:
        """Whether a batch is noted and not finished, as one is from before its plan until after its commit.

        None where the checkpoint cannot be read.
        """
        if self._read("metadata") is None:
            return None
        return max(self._entries("offsets"), default=-1) > max(self._entries("commits"), default=-1)

    def _entries(self, log: str) -> list[int]:
        """The batches that one of Spark's logs has an entry of."""
        try:
            names = _names(f"{self._root}/{log}")
        except Exception as error:
            _log.debug("%s of the checkpoint cannot be listed: %s", log, error)  # it appears with its first entry
            return []
        return [int(name) for name in names if name.isdecimal()]

    def _read(self, name: str) -> bytes | None:
        if self._location is None:
            return None
        try:
            return _content(f"{self._root}/{name}")
        except Exception as error:  # whatever a file system of fsspec's raises: the checkpoint is a help, not a need
            _log.info("%s of the checkpoint cannot be read here: %s", name, error)
            return None

    @property
    def _root(self) -> str:
        return (self._location or "").rstrip("/")


def _content(location: str) -> bytes:
    path = _local_path(location)
    if path is not None:
        return path.read_bytes()
    file_system, name = _file_system(location)
    content: bytes = file_system.cat_file(name)
    return content


def _names(location: str) -> list[str]:
    path = _local_path(location)
    if path is not None:
        return [entry.name for entry in path.iterdir()]
    file_system, name = _file_system(location)
    return [str(entry).rstrip("/").rpartition("/")[2] for entry in file_system.ls(name, detail=False)]


def _local_path(location: str) -> Path | None:
    local = re.sub(r"^file:(//(?=/))?", "", location)
    return Path(local) if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", local) is None else None


def _file_system(location: str) -> tuple[Any, str]:
    """That of fsspec, which forgets what it has seen there before, and the name in it."""
    file_system, name = import_module("fsspec.core").url_to_fs(location)
    file_system.invalidate_cache()
    return file_system, name
