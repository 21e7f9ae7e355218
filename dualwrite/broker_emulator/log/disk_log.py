"""One partition on disk: a folder of segments, with indexes and snapshots for a fast start.

Beside each `<base offset>.log` there is an `.index`: the positions of its offsets, and the transactions aborted in it.
It is written when a segment is complete, and at intervals for the newest one, together with `<offset>.snapshot`: the
state of producers at that offset. All of these can be rebuilt from the batches. They limit the work of a start: it only
reads batches appended since they were last written.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.disk_loading import (
    CLEANED_SUFFIX,
    COMPACTION_FILE,
    LOG_START_FILE,
    Loaded,
    Loader,
    checked,
    compacted_bases,
    encode_value,
    is_index_of,
    missing_end,
    own_files,
    segment_paths,
    snapshots,
)
from dualwrite.broker_emulator.log.disk_segment import DiskSegment, segment_path
from dualwrite.broker_emulator.log.files import OpenFiles, sync_data, sync_folder, write_atomically
from dualwrite.broker_emulator.log.flusher import Flusher, FlushJob
from dualwrite.broker_emulator.log.log_ends import LogEnd
from dualwrite.broker_emulator.log.segments import LoadedLog, LogState, Segment, StorageError
from dualwrite.broker_emulator.slices import Steps

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_BYTES = 8 << 20
"""Bytes appended between two writes of the newest segment's index and a snapshot: the most that a start has to read."""

_SNAPSHOT_COST = 64
"""A snapshot is written once this many times its size was appended, so that snapshots never dominate the writes."""

_KEPT_SNAPSHOTS = 2
DELETED_SUFFIX = "-delete"
"""Suffix of the folders of deleted topics. A partition's folder never has it, as its name ends with a number."""
_SUFFIXES = (".log", ".index")
_MAX_NAME_LENGTH = 255


class DiskLog:
    """Storage of one partition's segments in a folder, which is created with the first batch."""

    def __init__(
        self, folder: Path, files: OpenFiles, flusher: Flusher, *, stopped_cleanly: bool, end: LogEnd | None = None
    ) -> None:
        self._folder = folder
        self._end = end or LogEnd()
        self._files = files
        self._flusher = flusher
        self._stopped_cleanly = stopped_cleanly
        self._sync = flusher.fsync is not Fsync.NEVER
        self._state: LogState
        self._active: DiskSegment
        self._complete: list[DiskSegment] = []  # segments whose index has not been written yet
        self._flushed: Callable[[int], None] = lambda offset: None
        self._next_checkpoint_bytes = CHECKPOINT_INTERVAL_BYTES
        self._writing: set[DiskSegment] = set()  # segments whose index a thread may be writing
        self._names_changed = False
        self._generation = 0

    # opening

    def load(self, state: LogState) -> LoadedLog:
        self._state = state
        loaded = self._loaded(state)
        self._active = loaded.segments[-1]
        self._complete = loaded.not_indexed
        self._end.loaded(loaded.log_start_offset, self._active.next_offset)
        self._next_checkpoint_bytes = self._active.size_bytes + CHECKPOINT_INTERVAL_BYTES
        return LoadedLog(list(loaded.segments), loaded.log_start_offset)

    def _loaded(self, state: LogState) -> Loaded:
        if not self._folder.exists():
            if self._end.required:
                raise StorageError(missing_end(self._folder, 0, self._end.required))
            self._names_changed = True
            return Loaded([self._segment(0, 0)], 0, [])
        try:
            self._finish_compaction()
            loader = Loader(self._folder, self._files, state, self._end, stopped_cleanly=self._stopped_cleanly)
            return loader.load()
        except OSError as error:
            raise StorageError(f"{self._folder} cannot be read: {error}") from error

    def _segment(self, base_offset: int, stable_offset: int) -> DiskSegment:
        return DiskSegment(segment_path(self._folder, base_offset), base_offset, stable_offset, self._files)

    # writing

    def check_room(self) -> None:
        self._flusher.check()

    def new_segment(self, base_offset: int, stable_offset: int) -> DiskSegment:
        self._complete.append(self._active)
        self._active = self._segment(base_offset, stable_offset)
        self._next_checkpoint_bytes = CHECKPOINT_INTERVAL_BYTES
        self._names_changed = True
        return self._active

    def appended(self, active: Segment, flushed: Callable[[int], None]) -> None:
        is_due = bool(self._complete) or active.size_bytes >= self._next_checkpoint_bytes
        if self._flusher.delays_acknowledgement:
            self._flushed = flushed
            self._flusher.mark(self, now=True)
            return
        self._end.written(active.next_offset)
        flushed(active.next_offset)
        if is_due or self._sync:
            self._flusher.mark(self, now=is_due)

    def begin_flush(self) -> FlushJob:
        complete, self._complete = self._complete, []
        active = self._active
        files: dict[Path, bytes] = {}
        for segment in complete:
            files |= _index_file(segment)
        self._writing = set(complete)
        if complete or active.size_bytes >= self._next_checkpoint_bytes:
            self._writing.add(active)
            files |= self._checkpoint()
        folders = [self._folder, self._folder.parent] if self._names_changed else []
        self._names_changed = False
        written = [segment.path for segment in (*complete, active) if segment.size_bytes]
        end_offset, generation = active.next_offset, self._generation

        def run() -> None:
            if self._sync:
                for path in written:
                    sync_data(path)
                for folder in folders:
                    self._sync_folder(folder)
            if files:  # otherwise the folder may be gone: the topic was deleted
                self._write_derived(files)

        def finished() -> None:
            if generation != self._generation:
                return
            if self._sync:
                self._end.synced(end_offset)
            self._flushed(end_offset)

        return FlushJob(run, finished)

    def _sync_folder(self, folder: Path) -> None:
        """Sync the names in a folder. The log's own folder is gone if its topic was deleted meanwhile."""
        try:
            sync_folder(folder)
        except FileNotFoundError:
            if folder != self._folder:
                raise

    def _write_derived(self, files: Mapping[Path, bytes]) -> None:
        """Write indexes and a snapshot. A full disk does not stop the broker: only the next start takes longer."""
        try:
            for path, data in files.items():
                write_atomically(path, data, sync=self._sync)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            logger.warning("%s has no index of its last records: %s", self._folder, error)
        self._drop_old_snapshots()

    def _checkpoint(self) -> dict[Path, bytes]:
        """Return the files with which a start need not read the log up to here; the snapshot last."""
        snapshot = self._state.encode()
        active = self._active
        self._next_checkpoint_bytes = active.size_bytes + max(CHECKPOINT_INTERVAL_BYTES, _SNAPSHOT_COST * len(snapshot))
        path = self._folder / f"{active.next_offset:020d}.snapshot"
        return (_index_file(active) if active.size_bytes else {}) | {path: checked(snapshot)}

    def _drop_old_snapshots(self) -> None:
        for _, path in snapshots(self._folder)[:-_KEPT_SNAPSHOTS]:
            path.unlink(missing_ok=True)

    def close(self, active: Segment) -> None:
        self._flusher.settle()  # two threads must not write the same file at once
        if not self._folder.exists() or self._is_checkpointed(active.next_offset):
            return
        try:
            self._next_checkpoint_bytes = 0
            job = self.begin_flush()
            job.run()
        except OSError as error:
            raise StorageError(f"{self._folder} cannot be written: {error}") from error
        for path in segment_paths(self._folder):
            self._files.close(path)

    def _is_checkpointed(self, offset: int) -> bool:
        """Return whether indexes and a snapshot up to `offset` have been written."""
        return not self._complete and any(at == offset for at, _ in snapshots(self._folder))

    # deletion

    def destroy(self, segments: Sequence[Segment]) -> Steps[None]:
        """Rename the folder, so that its name is free at once, and delete its contents."""
        self._stop_indexing(segments)
        self._flusher.forget(self)
        if not self._folder.exists():
            return
        self._files.close_folder(self._folder)
        doomed = self._folder.with_name(doomed_stem(self._folder.name) + _doomed_suffix())
        try:
            self._folder.replace(doomed)
            yield
            yield from folder_removal(doomed)
        except OSError as error:
            logger.error("%s, of a deleted topic, cannot be removed: %s", self._folder, error)

    def truncating(self, offset: int) -> None:
        self._end.truncated(offset)

    def truncated(self, active: Segment) -> None:
        """Delete snapshots and the index that cover batches after the new end, the end of `active`."""
        assert isinstance(active, DiskSegment)
        self._stop_indexing([active])
        self._active = active
        self._generation += 1
        for offset, path in snapshots(self._folder):
            if offset > active.next_offset:
                path.unlink()
        active.path.with_suffix(".index").unlink(missing_ok=True)

    def start_moved(self, log_start_offset: int) -> None:
        if not self._folder.exists():
            return
        path = self._folder / LOG_START_FILE
        try:
            self._end.start_moved(log_start_offset)
            write_atomically(path, encode_value(log_start_offset), sync=self._sync)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from error

    def discard(self, segments: Sequence[Segment]) -> Steps[None]:
        self._stop_indexing(segments)
        for segment in segments:
            assert isinstance(segment, DiskSegment)
            self._unlink(segment.path)
            yield

    def _stop_indexing(self, segments: Sequence[Segment]) -> None:
        """Make sure that no thread writes, or will write, an index of these segments."""
        doomed = set(segments)
        self._complete = [segment for segment in self._complete if segment not in doomed]
        if not self._writing.isdisjoint(doomed):
            self._flusher.settle()

    def _unlink(self, path: Path) -> None:
        self._files.close(path)
        for suffix in _SUFFIXES:
            path.with_suffix(suffix).unlink(missing_ok=True)

    # compaction

    def new_cleaned_segment(self, base_offset: int, stable_offset: int) -> DiskSegment:
        path = self._folder / f"{base_offset:020d}.log{CLEANED_SUFFIX}"
        self._files.close(path)
        path.unlink(missing_ok=True)
        return DiskSegment(path, base_offset, stable_offset, self._files)

    def replace(self, originals: Sequence[Segment], cleaned: Segment) -> None:
        """Replace `originals` by `cleaned` atomically: it takes effect when the compaction file is in place."""
        assert isinstance(cleaned, DiskSegment)
        self._stop_indexing(originals)
        try:
            if self._sync:
                os.fdatasync(self._files.get(cleaned.path))
            for path, data in _index_file(cleaned).items():
                write_atomically(path, data, sync=self._sync)
            bases = [segment.base_offset for segment in originals]
            write_atomically(self._folder / COMPACTION_FILE, encode_value(bases), sync=self._sync)
            self._files.close(cleaned.path)
            self._finish_compaction()
        except OSError as error:
            raise StorageError(f"{self._folder} cannot be compacted: {error}") from error
        cleaned.path = segment_path(self._folder, cleaned.base_offset)

    def _finish_compaction(self) -> None:
        """Delete the originals and give the cleaned files their names; repeated if a crash interrupted it."""
        bases = compacted_bases(self._folder)
        if not bases:
            return
        path = segment_path(self._folder, bases[0])
        index, cleaned, cleaned_index = (
            path.with_suffix(suffix) for suffix in (".index", f".log{CLEANED_SUFFIX}", f".index{CLEANED_SUFFIX}")
        )
        self._files.close(path)
        if cleaned.exists():
            for base_offset in bases[1:]:
                self._unlink(segment_path(self._folder, base_offset))
            index.unlink(missing_ok=True)  # the segment's file is about to be replaced
            cleaned.replace(path)
        if is_index_of(cleaned_index, path):
            cleaned_index.replace(index)
        else:  # it was renamed; or the cleaned file is gone, and the originals stay as they are
            cleaned_index.unlink(missing_ok=True)
        if self._sync:
            sync_folder(self._folder)
        (self._folder / COMPACTION_FILE).unlink()


def _index_file(segment: DiskSegment) -> dict[Path, bytes]:
    """Return the path and contents of a segment's index file; that of a cleaned segment also has its suffix."""
    return {segment.path.with_name(segment.path.name.replace(".log", ".index")): segment.index().encode()}


def doomed_stem(folder: str) -> str:
    """Return the beginning of a deleted partition's new folder name: cut, because names have at most 255 bytes."""
    return folder[: _MAX_NAME_LENGTH - len(_doomed_suffix())]


def _doomed_suffix() -> str:
    return f".{uuid.uuid4().hex[:8]}{DELETED_SUFFIX}"


def folder_removal(folder: Path) -> Steps[None]:
    """Delete the broker's files in a folder of a deleted partition, and the folder if it is then empty. Raises OSError.

    Other files in it are not the broker's, and stay.
    """
    for path in own_files(folder):
        path.unlink()
        yield
    others = sorted(path.name for path in folder.iterdir())
    if others:
        logger.warning("keeping %s: its topic is deleted, but no broker wrote %s", folder, ", ".join(others))
    else:
        folder.rmdir()
