"""Records of coordinators that cannot be read: told with the file and the offset, so that an operator can act."""

from __future__ import annotations

from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.segments import StorageError


class UnreadableRecordError(Exception):
    """A record, or the batch that begins with it, cannot be decoded; the message says why."""

    def __init__(self, offset: int, problem: Exception) -> None:
        super().__init__(str(problem) or type(problem).__name__)
        self.offset = offset


def unreadable(log: PartitionLog, name: str, error: UnreadableRecordError) -> StorageError:
    """Return the error for the operator."""
    return StorageError(
        f"{log.location(error.offset)}: the record at offset {error.offset} of {name} cannot be read ({error}), so the "
        "coordinator of this partition cannot start. Restore the file, or delete the partition's folder and the file "
        "log-ends to start without what it knows"
    )
