"""Read a query's checkpoint: the id of the query, and a digest of the input of a batch.

Spark gives neither to the planner and the committer of a sink, but they run beside the driver, which writes the
checkpoint. `find_checkpoint` knows the places. Without a readable checkpoint the sink still works: it takes the id of
the query from the tasks, and refuses to skip a batch that was decided before, because an older checkpoint may have been
restored.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from dualwrite.guarded import pass_on_signal
from spark_sink.errors import SinkOptionError

_log = logging.getLogger("spark_sink")

_TEMPORARY: Final = "temporary-"
"""Prefix of the temporary directory that Spark makes for a query without a checkpoint location."""


class Checkpoint:
    """A checkpoint directory: a local path, or the URL of a file system of fsspec (if installed) or of pyarrow."""

    def __init__(self, location: str | None) -> None:
        self._location = location

    @property
    def location(self) -> str | None:
        """Location of the checkpoint; None if unknown."""
        return self._location

    def query_id(self) -> str | None:
        """Return the id that the query keeps across restarts; None if the checkpoint cannot be read."""
        content = self._read("metadata")
        if content is None:
            return None
        try:
            return str(json.loads(content)["id"])
        except (ValueError, LookupError, TypeError):
            _log.warning(
                "%s/metadata does not have the content that Spark writes; the query id is taken from the tasks",
                self._location,
            )
            return None

    def offsets_digest(self, batch_id: int) -> str | None:
        """Return a digest of the offsets that Spark recorded for a batch before it began.

        None if the checkpoint cannot be read. The digest covers the whole entry with its timestamp, because sources
        such as files record only a counter, which is the same for other input. Spark writes the entry once, and a
        replay reads it.
        """
        content = self._read(f"offsets/{batch_id}")
        return None if content is None else hashlib.sha256(content).hexdigest()

    def is_inside_batch(self) -> bool | None:
        """Return whether a batch is recorded and unfinished, as it is from before its plan until after its commit.

        None if the checkpoint cannot be read.
        """
        if self._read("metadata") is None:
            return None
        recorded, finished = self._newest("offsets"), self._newest("commits")
        return None if recorded is None or finished is None else recorded > finished

    def _newest(self, log: str) -> int | None:
        """Return the newest batch that one of Spark's logs has an entry for, or -1; None if it cannot be listed."""
        try:
            names = _names(f"{self._root}/{log}")
        except FileNotFoundError:  # it appears with its first entry
            return -1
        except Exception as error:  # as in `_read`
            pass_on_signal(error)
            _log.info("%s of the checkpoint cannot be listed here: %s", log, error)
            return None
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def _read(self, name: str) -> bytes | None:
        if self._location is None:
            return None
        try:
            return _content(f"{self._root}/{name}")
        except Exception as error:  # any error of an fsspec file system: the sink can do without the checkpoint
            pass_on_signal(error)
            _log.info("%s of the checkpoint cannot be read here: %s", name, error)
            return None

    @property
    def _root(self) -> str:
        return (self._location or "").rstrip("/")


def find_checkpoint(option: str | None, root: str | None, query_name: str | None, query_id: str) -> Checkpoint:
    """Return the checkpoint of a query, or one without a location if it is not found.

    Follows Spark's own choice: `option` of the writer; else, below `root` (a session setting), a directory named after
    the query or, without a name, randomly; else a temporary one. The last three are recognised by the query's id.
    """
    if option is not None:
        return Checkpoint(option)
    found = next((each for each in _candidates(root, query_name) if Checkpoint(each).query_id() == query_id), None)
    return Checkpoint(found)


def _candidates(root: str | None, query_name: str | None) -> Iterator[str]:
    if root is None:
        for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
            yield from (f"{parent}/{name}" for name in _listed(parent) if name.startswith(_TEMPORARY))
        return
    parent = root.rstrip("/")
    if query_name is not None:
        yield f"{parent}/{query_name}"
    else:
        yield from (f"{parent}/{name}" for name in _listed(parent))


def _listed(location: str) -> list[str]:
    try:
        return _names(location)
    except Exception as error:  # any error of a file system: the sink can do without the checkpoint
        pass_on_signal(error)
        _log.info("%s cannot be listed here, so the checkpoint is not found: %s", location, error)
        return []


def check_trigger(checkpoint: Checkpoint) -> None:
    """Raise SinkOptionError for a trigger that does not run micro-batches, if the checkpoint shows it.

    With the continuous trigger, Spark silently drops the rows of sinks in Python: the code that would write them
    returns an exception instead of raising it. A micro-batch is recorded in the checkpoint before it is planned; epochs
    of the continuous and the real-time trigger are recorded afterwards.
    """
    if checkpoint.is_inside_batch() is False:
        raise SinkOptionError(
            "this sink does not support the continuous and the real-time trigger: Spark gives no sink in Python their "
            "rows, or does not record an epoch before it runs; nothing was written. Use a trigger of micro-batches"
        )


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
    """Return the file system of a URL, with its cache emptied, and the path in it: fsspec's, else pyarrow's."""
    try:
        file_system, name = import_module("fsspec.core").url_to_fs(location)
    except ImportError:
        return _arrow_file_system(location)
    file_system.invalidate_cache()
    return file_system, name


class _ArrowFileSystem:
    """A pyarrow file system with the fsspec methods that are used here."""

    def __init__(self, file_system: Any) -> None:
        self._file_system = file_system

    def cat_file(self, name: str) -> bytes:
        with self._file_system.open_input_stream(name) as stream:
            content: bytes = stream.read()
            return content

    def ls(self, name: str, detail: bool) -> list[str]:
        assert not detail
        selector = import_module("pyarrow.fs").FileSelector(name)
        return [entry.path for entry in self._file_system.get_file_info(selector)]


def _arrow_file_system(location: str) -> tuple[_ArrowFileSystem, str]:
    """Return pyarrow's file system of a URL, and the path in it. Hadoop's names of S3 are `s3` there."""
    scheme, bucket, path = re.fullmatch(r"([^:]+)://([^/]*)/?(.*)", location).groups()  # type: ignore[union-attr]
    root = re.sub(r"^s3[an]$", "s3", scheme) + f"://{bucket}/"
    file_system, inside = _arrow_root(root)
    return _ArrowFileSystem(file_system), "/".join(part for part in (inside.rstrip("/"), path) if part)


@lru_cache
def _arrow_root(root: str) -> tuple[Any, str]:
    """Return pyarrow's file system of a bucket or a name node, and its path there. Cached: connecting takes time."""
    found: tuple[Any, str] = import_module("pyarrow.fs").FileSystem.from_uri(root)
    return found
