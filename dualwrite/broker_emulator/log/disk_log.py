"""One partition on disk: a folder of segments, with indexes and snapshots for a fast start.

Beside each `<base offset>.log` there is an `.index`: the positions of its offsets, and the transactions aborted in it.
It is written when a segment is complete, and at intervals for the newest one, together with `<offset>.snapshot`:
the state of producers at that offset. All of these can be rebuilt from the batches. They bound what a start reads:
only what was appended since they were last written.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from crc32c import crc32c

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.disk_segment import DiskSegment, IndexFile, segment_path
from dualwrite.broker_emulator.log.files import TEMPORARY_SUFFIX, OpenFiles, sync_data, sync_folder, write_atomically
from dualwrite.broker_emulator.log.record_batch import BatchHeader, parse_header
from dualwrite.broker_emulator.log.recovery import Damage, scan
from dualwrite.broker_emulator.log.segments import LoadedLog, LogState, Segment, StorageError
from dualwrite.broker_emulator.storage.flusher import Flusher, FlushJob

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_BYTES = 8 << 20
"""Bytes appended between two writes of the newest segment's index and a snapshot; what a start has to read at most."""

_SNAPSHOT_COST = 64
"""A snapshot is written once this many times its size was appended, so that snapshots never dominate the writes."""

_KEPT_SNAPSHOTS = 2
DELETED_SUFFIX = "-delete"
"""Suffix of the folders of deleted topics; a partition's folder never has it, as its name ends with a number."""
_LOG_START_FILE = "log-start-offset"
_COMPACTION_FILE = "compaction.json"
_CLEANED = ".cleaned"
_SUFFIXES = (".log", ".index")


class DiskLog:
    """Storage of one partition's segments in a folder, which is created with the first batch."""

    def __init__(self, folder: Path, files: OpenFiles, flusher: Flusher, *, stopped_cleanly: bool) -> None:
        self._folder = folder
        self._files = files
        self._flusher = flusher
        self._stopped_cleanly = stopped_cleanly
        self._sync = flusher.fsync is not Fsync.NEVER
        self._state: LogState
        self._active: DiskSegment
        self._complete: list[DiskSegment] = []  # segments whose index is not written yet
        self._flushed: Callable[[int], None] = lambda offset: None
        self._next_checkpoint_bytes = CHECKPOINT_INTERVAL_BYTES
        self._writing: set[DiskSegment] = set()  # segments whose index a thread may be writing
        self._names_changed = False
        self._generation = 0

    # opening

    def load(self, state: LogState) -> LoadedLog:
        self._state = state
        if not self._folder.exists():
            self._active = self._segment(0, 0)
            self._names_changed = True
            return LoadedLog([self._active], 0)
        try:
            segments, log_start_offset = self._load()
        except OSError as error:
            raise StorageError(f"{self._folder} cannot be read: {error}") from error
        self._active = segments[-1]
        self._next_checkpoint_bytes = self._active.size_bytes + CHECKPOINT_INTERVAL_BYTES
        return LoadedLog(list(segments), log_start_offset)

    def _load(self) -> tuple[list[DiskSegment], int]:
        self._finish_compaction()
        for leftover in [*self._folder.glob(f"*{TEMPORARY_SUFFIX}"), *self._folder.glob(f"*{_CLEANED}")]:
            leftover.unlink()
        log_start_offset = self._read_log_start_offset()
        segments: list[DiskSegment] = []
        is_indexed = True
        for base_offset in self._bases() or [log_start_offset]:
            segment = self._segment(base_offset, base_offset)
            is_indexed = is_indexed and self._adopt_index(segment)
            segments.append(segment)
        self._restore_state(segments)
        self._recover(segments)
        return segments, max(log_start_offset, segments[0].base_offset)

    def _bases(self) -> list[int]:
        """Return the base offsets of the stored segments; empty segments at the end are deleted."""
        paths = sorted(self._folder.glob("*.log"))
        while len(paths) > 1 and paths[-1].stat().st_size == 0:
            paths.pop().unlink()
        return [int(path.stem) for path in paths]

    def _adopt_index(self, segment: DiskSegment) -> bool:
        """Load a segment's index file; return whether it covers the whole segment."""
        try:
            size = segment.path.stat().st_size
            index = IndexFile.decode(segment.path.with_suffix(".index").read_bytes())
        except (FileNotFoundError, ValueError):
            return False
        if index.size_bytes > size:
            raise StorageError(
                f"{segment.path} has {size} bytes; {index.size_bytes} were complete when its index was written. "
                "Something else has truncated it: restore the file, or delete the topic's folders to start over"
            )
        segment.adopt(index)
        return index.size_bytes == size

    def _restore_state(self, segments: Sequence[DiskSegment]) -> None:
        """Restore the state at the end of the indexed part, from the newest snapshot and the batches after it."""
        indexed = [segment for segment in segments if segment.size_bytes]
        end = indexed[-1].next_offset if indexed else segments[0].base_offset
        restored = segments[0].base_offset
        for offset, path in reversed(self._snapshots()):
            if offset > end or (encoded := _read_checked(path)) is None:
                path.unlink()
                continue
            self._state.restore(encoded)
            restored = offset
            break
        for segment in indexed:
            if restored < segment.next_offset:
                self._replay(segment, restored)

    def _replay(self, segment: DiskSegment, offset: int) -> None:
        for batch in segment.iterate(offset):
            header = parse_header(batch)
            if header.base_offset >= offset:
                self._state.replay(header, batch, None)

    def _recover(self, segments: list[DiskSegment]) -> None:
        """Read the part that no index covers, and truncate a torn write at its end."""
        expected = segments[0].base_offset
        for segment in segments:
            if segment.base_offset != expected:
                raise StorageError(
                    f"{segment.path} should begin with offset {expected}: a segment is missing before it"
                )
            segment.stable_offset = min(segment.stable_offset, self._state.stable_offset(segment.base_offset))
            is_last = segment is segments[-1]
            damage = self._read_rest(segment, is_last=is_last)
            if damage is not None:
                self._truncate_torn_write(segment, damage, is_last=is_last)
            expected = segment.next_offset

    def _read_rest(self, segment: DiskSegment, *, is_last: bool) -> Damage | None:
        known = segment.size_bytes
        if not segment.path.exists() or segment.path.stat().st_size == known:
            return None
        if not is_last:
            self._complete.append(segment)

        def accept(header: BatchHeader, batch: memoryview) -> None:
            segment.learn(header.size_bytes, header.last_offset + 1, header.max_timestamp)
            self._state.replay(header, batch, segment)

        with segment.path.open("rb") as file:
            file.seek(known)
            damage = scan(memoryview(file.read()), segment.next_offset, accept, may_have_gaps=not is_last)
        return None if damage is None else damage.moved_by(known)

    def _truncate_torn_write(self, segment: DiskSegment, damage: Damage, *, is_last: bool) -> None:
        where = f"{segment.path} is damaged at position {damage.position} ({damage.problem})"
        advice = "Restore the file, or delete the topic's folders to start over"
        if damage.intact_after is not None:
            raise StorageError(
                f"{where}, and an intact batch is found at position {damage.intact_after}: no crash leaves that, and "
                f"truncating the log there could lose acknowledged records. {advice}"
            )
        if not is_last:
            raise StorageError(f"{where}, and later segments follow: no crash leaves that. {advice}")
        if self._stopped_cleanly:
            raise StorageError(f"{where}, although the broker was stopped cleanly. {advice}")
        size = segment.path.stat().st_size
        logger.warning("%s; the last %d bytes, never acknowledged, are truncated", where, size - damage.position)
        os.truncate(segment.path, damage.position)

    def _segment(self, base_offset: int, stable_offset: int) -> DiskSegment:
        return DiskSegment(segment_path(self._folder, base_offset), base_offset, stable_offset, self._files)

    def _snapshots(self) -> list[tuple[int, Path]]:
        return sorted((int(path.stem), path) for path in self._folder.glob("*.snapshot"))

    def _read_log_start_offset(self) -> int:
        try:
            return int((self._folder / _LOG_START_FILE).read_text())
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise StorageError(f"{self._folder / _LOG_START_FILE} does not contain an offset: {error}") from error

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
                    sync_folder(folder)
            for path, data in files.items():
                write_atomically(path, data, sync=self._sync)
            self._drop_old_snapshots()

        def finished() -> None:
            if generation == self._generation:
                self._flushed(end_offset)

        return FlushJob(run, finished)

    def _checkpoint(self) -> dict[Path, bytes]:
        """Return the files by which a start need not read anything up to here; the snapshot last."""
        snapshot = self._state.encode()
        active = self._active
        self._next_checkpoint_bytes = active.size_bytes + max(CHECKPOINT_INTERVAL_BYTES, _SNAPSHOT_COST * len(snapshot))
        path = self._folder / f"{active.next_offset:020d}.snapshot"
        return (_index_file(active) if active.size_bytes else {}) | {path: _checked(snapshot)}

    def _drop_old_snapshots(self) -> None:
        for _, path in self._snapshots()[:-_KEPT_SNAPSHOTS]:
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
        for path in self._folder.glob("*.log"):
            self._files.close(path)

    def _is_checkpointed(self, offset: int) -> bool:
        """Return whether indexes and a snapshot up to `offset` are written."""
        return not self._complete and any(at == offset for at, _ in self._snapshots())

    # deletion

    def destroy(self, segments: Sequence[Segment]) -> None:
        """Rename the folder, so that its name is free at once, and delete its contents."""
        self._stop_indexing(segments)
        self._flusher.forget(self)
        for path in self._folder.glob("*"):
            self._files.close(path)
        if self._folder.exists():
            doomed = self._folder.with_name(self._folder.name + DELETED_SUFFIX)
            self._folder.replace(doomed)
            shutil.rmtree(doomed)

    def truncated(self, active: Segment) -> None:
        """Delete snapshots and the index that cover batches after the new end, which is that of `active`."""
        assert isinstance(active, DiskSegment)
        self._stop_indexing([active])
        self._active = active
        self._generation += 1
        for offset, path in self._snapshots():
            if offset > active.next_offset:
                path.unlink()
        active.path.with_suffix(".index").unlink(missing_ok=True)

    def start_moved(self, log_start_offset: int) -> None:
        if self._folder.exists():
            self._write(self._folder / _LOG_START_FILE, str(log_start_offset).encode())

    def discard(self, segments: Sequence[Segment]) -> None:
        self._stop_indexing(segments)
        for segment in segments:
            assert isinstance(segment, DiskSegment)
            self._unlink(segment.path)

    def _stop_indexing(self, segments: Sequence[Segment]) -> None:
        """Make sure that no thread writes, or will write, an index of these segments."""
        self._complete = [segment for segment in self._complete if segment not in segments]
        if not self._writing.isdisjoint(segments):
            self._flusher.settle()

    def _unlink(self, path: Path) -> None:
        self._files.close(path)
        for suffix in _SUFFIXES:
            path.with_suffix(suffix).unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        try:
            write_atomically(path, data, sync=self._sync)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from error

    # compaction

    def new_cleaned_segment(self, base_offset: int, stable_offset: int) -> DiskSegment:
        path = self._folder / f"{base_offset:020d}.log{_CLEANED}"
        self._files.close(path)
        path.unlink(missing_ok=True)
        return DiskSegment(path, base_offset, stable_offset, self._files)

    def replace(self, originals: Sequence[Segment], cleaned: Segment) -> None:
        """Replace `originals` by `cleaned`, atomically: it takes effect when the compaction file is in place."""
        assert isinstance(cleaned, DiskSegment)
        self._stop_indexing(originals)
        try:
            if self._sync:
                os.fdatasync(self._files.get(cleaned.path))
            for path, data in _index_file(cleaned).items():
                write_atomically(path, data, sync=self._sync)
            bases = [segment.base_offset for segment in originals]
            write_atomically(self._folder / _COMPACTION_FILE, json.dumps(bases).encode(), sync=self._sync)
            self._files.close(cleaned.path)
            self._finish_compaction()
        except OSError as error:
            raise StorageError(f"{self._folder} cannot be compacted: {error}") from error
        cleaned.path = segment_path(self._folder, cleaned.base_offset)

    def _finish_compaction(self) -> None:
        """Delete the originals and rename the cleaned files to them; repeated if a crash interrupted it."""
        try:
            bases = json.loads((self._folder / _COMPACTION_FILE).read_text())
        except FileNotFoundError:
            return
        path = segment_path(self._folder, bases[0])
        for base_offset in bases[1:]:
            self._unlink(segment_path(self._folder, base_offset))
        self._files.close(path)
        for suffix in _SUFFIXES:
            cleaned = path.with_suffix(suffix + _CLEANED)
            if cleaned.exists():
                cleaned.replace(path.with_suffix(suffix))
        if self._sync:
            sync_folder(self._folder)
        (self._folder / _COMPACTION_FILE).unlink()


def _index_file(segment: DiskSegment) -> dict[Path, bytes]:
    """Return the path and contents of a segment's index file; a cleaned segment's has its suffix too."""
    return {segment.path.with_name(segment.path.name.replace(".log", ".index")): segment.index().encode()}


def _checked(data: bytes) -> bytes:
    return crc32c(data).to_bytes(4, "big") + data


def _read_checked(path: Path) -> bytes | None:
    """Read the output of `_checked`; None if it is damaged."""
    data = path.read_bytes()
    return data[4:] if len(data) >= 4 and crc32c(data[4:]) == int.from_bytes(data[:4], "big") else None
