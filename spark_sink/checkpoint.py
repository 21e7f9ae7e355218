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

    def _read(self, name: str) -> bytes | None:
        if self._location is None:
            return None
        try:
            return _content(f"{self._location.rstrip('/')}/{name}")
        except Exception as error:  # whatever a file system of fsspec's raises: the checkpoint is a help, not a need
            _log.info("%s of the checkpoint cannot be read here: %s", name, error)
            return None


def _content(location: str) -> bytes:
    local = re.sub(r"^file:(//(?=/))?", "", location)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", local) is None:
        return Path(local).read_bytes()
    with import_module("fsspec").open(location, "rb") as file:
        content: bytes = file.read()
    return content
