"""Replay a log of a coordinator. An unreadable record ends it with a sentence that has the record's location."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.log.record_batch import BatchHeader, Record, iter_records, parse_header
from dualwrite.broker_emulator.log.segments import StorageError

if TYPE_CHECKING:
    from dualwrite.broker_emulator.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

Apply = Callable[[BatchHeader, Record], None]

UNREADABLE = (ValueError, LookupError, TypeError, OverflowError, struct.error)
"""Errors raised by reading the fields of an invalid record."""


class UnreadableRecordError(StorageError):
    """A record that no coordinator could have written."""


class UnknownKeyVersionError(Exception):
    """A record whose key has a version of a later release, perhaps from an upgrade that was undone."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def replay(log: PartitionLog, apply: Apply) -> None:
    """Pass every record to `apply`, in order. Raises UnreadableRecordError if it cannot be read.

    A record with a key of an unknown version is ignored with a warning, as in Kafka.
    """
    for batch in log.batches() if log.log_end_offset else ():
        header = parse_header(batch)
        offset = header.base_offset
        try:
            for record in iter_records(batch):
                offset = record.offset
                _apply(log, apply, header, record)
        except UNREADABLE as error:
            raise UnreadableRecordError(
                f"{log.location(offset)}: the record at offset {offset} of {log.topic}-{log.partition} cannot be read "
                f"({str(error) or type(error).__name__}), so the coordinator of this partition cannot start. Restore "
                "the file, or delete the partition's folder and the file log-ends to start without its state"
            ) from error


def _apply(log: PartitionLog, apply: Apply, header: BatchHeader, record: Record) -> None:
    try:
        apply(header, record)
    except UnknownKeyVersionError as error:
        logger.warning(
            "%s-%d has a record with the key version %d at offset %d; ignoring it, as it may be left over from a "
            "later version",
            log.topic,
            log.partition,
            error.version,
            record.offset,
        )
