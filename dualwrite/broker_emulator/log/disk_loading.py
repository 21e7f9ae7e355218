"""Load the segments of one partition at a start: detect missing data and torn writes.

All files are read and judged first. Leftovers are deleted and a torn write truncated only afterwards, so that a refused
start changes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from dualwrite.broker_emulator.log.disk_segment import DiskSegment, IndexFile, segment_path
from dualwrite.broker_emulator.log.files import TEMPORARY_SUFFIX, OpenFiles
from dualwrite.broker_emulator.log.log_ends import LogEnd
from dualwrite.broker_emulator.log.record_batch import BatchHeader, parse_header
from dualwrite.broker_emulator.log.recovery import Damage, scan
from dualwrite.broker_emulator.log.segments import LogState, StorageError

logger = logging.getLogger(__name__)

LOG_START_FILE: Final = "log-start-offset"
COMPACTION_FILE: Final = "compaction.json"
CLEANED_SUFFIX: Final = ".cleaned"
_SEGMENT: Final = re.compile(r"\d{20}\.log")
_SNAPSHOT: Final = re.compile(r"\d{20}\.snapshot")
_OWN: Final = re.compile(
    rf"(\d{{20}}\.(log|index|snapshot)({re.escape(CLEANED_SUFFIX)})?|{LOG_START_FILE}|{re.escape(COMPACTION_FILE)})"
    rf"({re.escape(TEMPORARY_SUFFIX)})?"
)
_START_OVER: Final = "or delete the topic's folders and the file log-ends to start over without them"
_ADVICE: Final = f"Restore the file, {_START_OVER}"


class Loaded(NamedTuple):
    """A partition as its storage was found."""

    segments: list[DiskSegment]
    """Oldest first, contiguous, at least one."""
    log_start_offset: int
    not_indexed: list[DiskSegment]
    """Segments, except the newest, whose index must be rewritten."""


def own_files(folder: Path) -> list[Path]:
    """Return the files in a partition's folder that a broker wrote; other files are not the broker's."""
    return sorted(path for path in folder.iterdir() if _OWN.fullmatch(path.name))


def snapshots(folder: Path) -> list[tuple[int, Path]]:
    """Return offset and path of every snapshot, oldest first."""
    return sorted((int(path.stem), path) for path in _named(folder, _SNAPSHOT))


def segment_paths(folder: Path) -> list[Path]:
    """Return the segments' files, oldest first."""
    return sorted(_named(folder, _SEGMENT))


def _named(folder: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    return (path for path in folder.iterdir() if pattern.fullmatch(path.name))


def encode_value(value: Any) -> bytes:
    """Return the contents of a small file: JSON and a checksum on one line."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%s %08x\n" % (text, crc32c(text))


def _decode_value(data: bytes) -> Any:
    """Decode the output of `encode_value`. Raises ValueError."""
    text, _, checksum = data.rstrip(b"\n").rpartition(b" ")
    if checksum != b"%08x" % crc32c(text):
        raise ValueError("its checksum does not match")
    return json.loads(text)


def _decode_offset(data: bytes) -> int:
    value = _decode_value(data)
    if type(value) is not int or value < 0:
        raise ValueError("it holds no offset")
    return value


def compacted_bases(folder: Path) -> list[int]:
    """Return the base offsets of the segments that an interrupted compaction replaces; none without a compaction."""
    path = folder / COMPACTION_FILE
    try:
        bases = _decode_value(path.read_bytes())
    except FileNotFoundError:
        return []
    except ValueError:
        bases = None
    if not isinstance(bases, list) or not bases or not all(type(base) is int and base >= 0 for base in bases):
        raise StorageError(f"{path} is damaged: which segments were compacted is unknown. {_ADVICE}")
    return bases


def is_index_of(index: Path, segment: Path) -> bool:
    """Return whether an index file covers the whole of a segment's file."""
    try:
        return IndexFile.decode(index.read_bytes()).size_bytes == segment.stat().st_size
    except (FileNotFoundError, ValueError):
        return False


def checked(data: bytes) -> bytes:
    """Return `data` with a checksum before it."""
    return crc32c(data).to_bytes(4, "big") + data


def _read_checked(path: Path) -> bytes | None:
    """Read the output of `checked`; None if it is damaged."""
    data = path.read_bytes()
    return data[4:] if len(data) >= 4 and crc32c(data[4:]) == int.from_bytes(data[:4], "big") else None


class Loader:
    """Loads one partition, once, from a folder that exists."""

    def __init__(self, folder: Path, files: OpenFiles, state: LogState, end: LogEnd, *, stopped_cleanly: bool) -> None:
        self._folder = folder
        self._files = files
        self._state = state
        self._end = end
        self._stopped_cleanly = stopped_cleanly
        self._not_indexed: list[DiskSegment] = []
        self._leftovers: list[Path] = []

    def load(self) -> Loaded:
        """Load the partition and bring its state up to the end. Raises StorageError, without changing any file."""
        log_start_offset = self._log_start_offset()
        segments = self._segments(log_start_offset)
        self._restore_state(segments)
        damage = self._read_segments(segments)
        self._check_end(segments[-1], damage)
        self._clean_up(segments[-1], damage)
        return Loaded(segments, log_start_offset, self._not_indexed)

    # segments found

    def _log_start_offset(self) -> int:
        """Return the log start offset. It is noted before its file is written, and never moves backwards."""
        path = self._folder / LOG_START_FILE
        noted = self._end.start
        try:
            stored = _decode_offset(path.read_bytes())
        except FileNotFoundError:
            stored = 0
        except ValueError as error:
            if self._end.found is None:
                raise StorageError(f"{path} is damaged: {error}. {_ADVICE}") from error
            stored = 0
        if stored < noted:
            logger.warning("%s is missing or damaged; the log starts at %d, noted in another file", path, noted)
        elif stored > noted and self._end.is_exact:
            raise StorageError(f"{path} says {stored}, but nothing at or above {noted} was ever deleted. {_ADVICE}")
        return max(stored, noted)

    def _segments(self, log_start_offset: int) -> list[DiskSegment]:
        """Return the stored segments, with the contents of their indexes."""
        segments = []
        is_indexed = True
        for path in self._stored(log_start_offset):
            base_offset = int(path.stem)
            segment = DiskSegment(path, base_offset, base_offset, self._files)
            is_indexed = is_indexed and _adopt_index(segment)
            segments.append(segment)
        if segments[0].base_offset > log_start_offset:
            raise StorageError(
                f"{self._folder} begins with offset {segments[0].base_offset}; nothing from {log_start_offset} on was "
                f"deleted, so its first segments are missing. Restore them, {_START_OVER}"
            )
        return segments

    def _stored(self, log_start_offset: int) -> list[Path]:
        """Return the segments' files, without empty ones at the end."""
        paths = segment_paths(self._folder)
        while paths and paths[-1].stat().st_size == 0 and not paths[-1].with_suffix(".index").exists():
            self._leftovers.append(paths.pop())
        return paths or [segment_path(self._folder, log_start_offset)]

    # state and contents

    def _restore_state(self, segments: Sequence[DiskSegment]) -> None:
        """Restore the state at the end of the indexed part, from the newest snapshot and the batches after it."""
        indexed = [segment for segment in segments if segment.size_bytes]
        end = indexed[-1].next_offset if indexed else segments[0].base_offset
        restored = segments[0].base_offset
        for offset, path in reversed(snapshots(self._folder)):
            if offset > end or (encoded := _read_checked(path)) is None:
                self._leftovers.append(path)
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

    def _read_segments(self, segments: Sequence[DiskSegment]) -> Damage | None:
        """Read the part that no index covers, and return the torn write at its end."""
        expected = segments[0].base_offset
        damage: Damage | None = None
        for segment in segments:
            if segment.base_offset != expected:
                raise StorageError(
                    f"{segment.path} should begin with offset {expected}: a segment is missing before it"
                )
            segment.stable_offset = min(segment.stable_offset, self._state.stable_offset(segment.base_offset))
            is_last = segment is segments[-1]
            damage = self._read_rest(segment, is_last=is_last)
            if damage is not None:
                self._check_torn(segment, damage, is_last=is_last)
            expected = segment.next_offset
        return damage

    def _read_rest(self, segment: DiskSegment, *, is_last: bool) -> Damage | None:
        known = segment.size_bytes
        if not segment.path.exists() or segment.path.stat().st_size == known:
            return None
        if not is_last:
            self._not_indexed.append(segment)

        def accept(header: BatchHeader, batch: memoryview) -> None:
            segment.learn(header.size_bytes, header.last_offset + 1, header.max_timestamp)
            self._state.replay(header, batch, segment)

        with segment.path.open("rb") as file:
            file.seek(known)
            damage = scan(
                memoryview(file.read()),
                segment.next_offset,
                accept,
                may_have_gaps=not is_last,
                # if nothing more can have been acknowledged, a record may contain any bytes
                must_search=lambda: not (self._end.is_exact and segment.next_offset >= self._end.required),
            )
        return None if damage is None else damage.moved_by(known)

    # missing data

    def _check_torn(self, segment: DiskSegment, damage: Damage, *, is_last: bool) -> None:
        where = f"{segment.path} is damaged at position {damage.position} ({damage.problem})"
        if damage.intact_after is not None:
            raise StorageError(
                f"{where}, and an intact batch is found at position {damage.intact_after}: no crash leaves that, and "
                f"truncating the log there could lose acknowledged records. {_ADVICE}"
            )
        if not is_last:
            raise StorageError(f"{where}, and later segments follow: no crash leaves that. {_ADVICE}")
        if self._stopped_cleanly:
            raise StorageError(f"{where}, although the broker was stopped cleanly. {_ADVICE}")
        if segment.next_offset < self._end.required:
            raise StorageError(
                f"{where}; the records from offset {segment.next_offset} to {self._end.required - 1} were "
                f"acknowledged. {_ADVICE}"
            )

    def _check_end(self, last: DiskSegment, damage: Damage | None) -> None:
        """Compare the end of the log with its note."""
        end, found = last.next_offset, self._end.found
        if end < self._end.required:
            raise StorageError(missing_end(self._folder, end, self._end.required))
        if found is not None and end < found.written:
            logger.warning(
                "%s ends at offset %d: the records up to offset %d, acknowledged before they were on the disk, are "
                "lost with the machine's last boot",
                self._folder,
                end,
                found.written - 1,
            )
        if damage is not None:
            size = last.path.stat().st_size - damage.position
            told = "never acknowledged" if self._end.is_exact else "as an interrupted write leaves them"
            logger.warning(
                "%s is damaged at position %d (%s); the last %d bytes, %s, are truncated",
                *(last.path, damage.position, damage.problem, size, told),
            )

    # afterwards

    def _clean_up(self, last: DiskSegment, damage: Damage | None) -> None:
        for path in own_files(self._folder):
            if path.name.endswith((TEMPORARY_SUFFIX, CLEANED_SUFFIX)):
                path.unlink()
        for path in self._leftovers:
            path.unlink()
        if damage is not None:
            os.truncate(last.path, damage.position)


def missing_end(folder: Path, end: int, required: int) -> str:
    """Describe a log that ends too early, and the possible remedies."""
    return (
        f"{folder} ends at offset {end}; the records up to offset {required - 1} were acknowledged and are missing: "
        f"something else has removed or cut off its files. Restore them, {_START_OVER}"
    )


def _adopt_index(segment: DiskSegment) -> bool:
    """Load a segment's index file; return whether it covers the whole segment."""
    try:
        index = IndexFile.decode(segment.path.with_suffix(".index").read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    size = segment.path.stat().st_size if segment.path.exists() else 0
    if index.size_bytes > size:
        raise StorageError(
            f"{segment.path} has {size} bytes; {index.size_bytes} were complete when its index was written. "
            f"Something else has truncated it. {_ADVICE}"
        )
    segment.adopt(index)
    return index.size_bytes == size
