"""The ends of the journal and of each log, in a file of their own, so that a start detects missing data.

A log that lost its last batches looks like a log that never had them, so its end is noted outside of the log. Each
append is noted here before it is acknowledged, in memory that is mapped to the file and not synced: that costs less
than half a microsecond. Notes survive a kill of the process, as the appends do. After a power failure (another boot of
the machine), only synced data is relied on.

The file is a header and an entry per partition, each 64 bytes with a checksum, and is rewritten at every start. It
serves as proof only and can be rebuilt: without it, a start accepts the logs as it finds them.
"""

from __future__ import annotations

import logging
import struct
import uuid
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from dualwrite.broker_emulator.log.files import write_atomically

logger = logging.getLogger(__name__)

_BLOCK_BYTES: Final = 64
_MAGIC: Final = b"dwe1"
_HEADER: Final = struct.Struct(">4s16sqq")  # magic, boot, generation and size of the journal
_KEY: Final = struct.Struct(">16si")  # topic id, partition
_ENDS: Final = struct.Struct(">qqq")
_CRC: Final = struct.Struct(">I")
_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_UNKNOWN_BOOT: Final = bytes(16)


class Ends(NamedTuple):
    """The ends of one log."""

    start: int
    """The log start offset: everything below it was deleted."""
    written: int
    """The offset after the last append that may have been acknowledged."""
    synced: int
    """The offset up to which the disk has the log."""


class JournalMark(NamedTuple):
    """The end of the metadata journal."""

    generation: int
    size_bytes: int


_NOTHING: Final = Ends(0, 0, 0)


class LogEnd:
    """The ends of one log: those that the previous process noted, and the current ones.

    Without a file, it stores nothing and knows nothing of an earlier process.
    """

    __slots__ = ("_file", "_key", "_position", "_start", "_synced", "_written", "found", "is_exact")

    def __init__(self, key: bytes = b"", found: Ends | None = None, *, is_exact: bool = False) -> None:
        self.found = found
        """The note of the previous process; None if unknown."""
        self.is_exact = is_exact and found is not None
        """Whether the log must end exactly at `written`: the process may have died since, but not the machine."""
        self._key = key
        self._start, self._written, self._synced = found or _NOTHING
        self._file: LogEnds | None = None
        self._position = -1

    @property
    def required(self) -> int:
        """The offset up to which the log must be complete."""
        if self.found is None:
            return 0
        return self.found.written if self.is_exact else self.found.synced

    @property
    def start(self) -> int:
        """The noted log start offset, 0 if unknown."""
        return self._start

    def loaded(self, start: int, end: int) -> None:
        """Note the log as it was loaded."""
        self._start, self._written = start, end
        self._synced = 0 if self.found is None else min(self.found.synced, end)

    def start_moved(self, offset: int) -> None:
        """Note a new log start offset."""
        self._start = offset
        self._note()

    def written(self, offset: int) -> None:
        """Note an append that ends before `offset`."""
        self._written = offset
        self._note()

    def synced(self, offset: int) -> None:
        """Note that the disk has the log up to `offset`."""
        self._written, self._synced = max(self._written, offset), offset
        self._note()

    def truncated(self, offset: int) -> None:
        """Note that the log ends at `offset`, before any record is removed."""
        self._written, self._synced = min(self._written, offset), min(self._synced, offset)
        self._note()

    def _note(self) -> None:
        if self._file is not None:
            self._file.write(self._position, self.encode())

    def encode(self) -> bytes:
        """Encode the entry of the file."""
        body = self._key + _ENDS.pack(self._start, self._written, self._synced)
        return body + _CRC.pack(crc32c(body))

    def keep_in(self, file: LogEnds, position: int) -> None:
        """Note everything in this file from now on."""
        self._file, self._position = file, position
        self._note()

    def drop(self) -> int:
        """Stop taking notes, and return the position of the entry, -1 if there is none."""
        position, self._file, self._position = self._position, None, -1
        return position


class LogEnds:
    """The file of all ends of a data directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal: JournalMark | None = None
        """The end of the journal; None if unknown."""
        self._found: dict[bytes, Ends] = {}
        self._is_exact = False
        self._logs: dict[bytes, LogEnd] = {}
        self._free: list[int] = []
        self._size = 0
        self._map: mmap | None = None

    # reading

    def read(self) -> None:
        """Read the notes of the previous process; a damaged file counts as missing. Raises OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        header = _checked(data[:_BLOCK_BYTES], _HEADER.size)
        if header is None or not header.startswith(_MAGIC):
            logger.warning("%s is damaged: a log that lacks its end cannot be detected", self.path)
            return
        _, boot, generation, size = _HEADER.unpack(header)
        self.journal = JournalMark(generation, size)
        self._is_exact = boot == _boot() != _UNKNOWN_BOOT
        self._found = dict(_entries(self.path, data))

    def forget(self) -> None:
        """Discard everything that was read: the file belongs to another state of the directory."""
        self.journal, self._found, self._is_exact = None, {}, False

    def of(self, topic_id: uuid.UUID, partition: int) -> LogEnd:
        """Return the ends of one log. Raises OSError."""
        key = _KEY.pack(topic_id.bytes, partition)
        log = self._logs[key] = LogEnd(key, self._found.get(key), is_exact=self._is_exact)
        if self._map is not None:
            self.make_room(1)
            log.keep_in(self, self._free.pop())
        return log

    # writing

    def open(self, journal: JournalMark) -> None:
        """Rewrite the file, with all logs as they were loaded. Raises OSError."""
        blocks = [self._header(journal)]
        for log in self._logs.values():
            log.keep_in(self, _BLOCK_BYTES * len(blocks))  # not open yet: this writes nothing to the file
            blocks.append(log.encode().ljust(_BLOCK_BYTES, b"\0"))
        write_atomically(self.path, b"".join(blocks), sync=False)
        self._size = _BLOCK_BYTES * len(blocks)
        with self.path.open("r+b") as file:
            self._map = mmap(file.fileno(), self._size)
        self._found = {}

    def journal_written(self, journal: JournalMark) -> None:
        """Note the end of the journal."""
        self.write(0, self._header(journal))

    def make_room(self, partitions: int) -> None:
        """Reserve entries for new partitions, so that a full disk cannot refuse them later. Raises OSError."""
        missing = partitions - len(self._free)
        if missing <= 0 or self._map is None:
            return
        with self.path.open("r+b") as file:  # not yet mapped: a full disk is an error here, but a signal later
            file.seek(self._size)
            file.write(bytes(_BLOCK_BYTES * missing))
            file.flush()
            self._map.close()
            self._map = mmap(file.fileno(), self._size + _BLOCK_BYTES * missing)
        self._free += range(self._size, self._size + _BLOCK_BYTES * missing, _BLOCK_BYTES)
        self._size += _BLOCK_BYTES * missing

    def remove(self, topic_id: uuid.UUID, partition: int) -> None:
        """Remove the entry of one partition of a deleted topic."""
        log = self._logs.pop(_KEY.pack(topic_id.bytes, partition), None)
        position = -1 if log is None else log.drop()
        if position >= 0:
            self._free.append(position)
            self.write(position, bytes(_BLOCK_BYTES))

    def write(self, position: int, data: bytes) -> None:
        """Write a part of the file in place."""
        if self._map is not None:
            self._map[position : position + len(data)] = data

    def close(self) -> None:
        """Close the file."""
        if self._map is not None:
            self._map.close()
            self._map = None

    @staticmethod
    def _header(journal: JournalMark) -> bytes:
        body = _HEADER.pack(_MAGIC, _boot(), *journal)
        return (body + _CRC.pack(crc32c(body))).ljust(_BLOCK_BYTES, b"\0")


def _entries(path: Path, data: bytes) -> Iterator[tuple[bytes, Ends]]:
    damaged = 0
    for position in range(_BLOCK_BYTES, len(data), _BLOCK_BYTES):
        block = data[position : position + _BLOCK_BYTES]
        entry = _checked(block, _KEY.size + _ENDS.size)
        if entry is not None:
            yield entry[: _KEY.size], Ends(*_ENDS.unpack(entry[_KEY.size :]))
        elif block.strip(b"\0"):
            damaged += 1
    if damaged:
        logger.warning("%s: %d entries are damaged, and the ends of that many logs cannot be checked", path, damaged)


def _checked(block: bytes, size: int) -> bytes | None:
    """Return the first `size` bytes of a block if the checksum after them is right."""
    if len(block) < size + _CRC.size or _CRC.unpack_from(block, size)[0] != crc32c(block[:size]):
        return None
    return block[:size] if any(block[:size]) else None


def _boot() -> bytes:
    """Return the id of the machine's current boot, or zeros if the system has none."""
    try:
        return uuid.UUID(_BOOT_FILE.read_text().strip()).bytes
    except (OSError, ValueError):
        return _UNKNOWN_BOOT
