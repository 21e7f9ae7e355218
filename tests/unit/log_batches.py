"""Batches as brokers store them, for tests of their readers."""

from __future__ import annotations

import struct
from typing import Any, Final

from kafka.record.default_records import DefaultRecordBatchBuilder

from dualwrite.client.records.batch_reading import StoredBatch, batches_in
from dualwrite.client.records.batches import checksummed

ATTRIBUTES_AT: Final = 21
LEADER_EPOCH_AT: Final = 12


def batch_bytes(
    base_offset: int,
    *values: bytes | None,
    producer_id: int = 7,
    epoch: int = 5,
    transactional: bool = True,
    control: bool = False,
    key: bytes | None = None,
    timestamp_ms: int = 1_000,
) -> bytes:
    """Return a batch with kafka-python's builder, at its place in the log."""
    untyped: Any = DefaultRecordBatchBuilder
    builder = untyped(2, 0, int(transactional), producer_id, epoch, 0, 1 << 20)
    for number, value in enumerate(values):
        builder.append(number, timestamp_ms + number, key, value, [])
    data = bytearray(builder.build())
    if control:
        data[ATTRIBUTES_AT + 1] |= 0x20
    checksummed(data)
    return placed(data, base_offset)


def placed(data: bytearray | bytes, base_offset: int) -> bytes:
    """Return a batch as a leader stores it: with its offset and the leader's epoch, which no checksum covers."""
    stored = bytearray(data)
    struct.pack_into(">q", stored, 0, base_offset)
    struct.pack_into(">i", stored, LEADER_EPOCH_AT, 3)
    return bytes(stored)


def marker_bytes(offset: int, *, commits: bool, producer_id: int = 7, epoch: int = 5, kind: int | None = None) -> bytes:
    """Return the control batch with which a leader ends a transaction."""
    key = struct.pack(">hh", 0, int(commits) if kind is None else kind)
    value = struct.pack(">hi", 0, 9)
    return batch_bytes(offset, value, key=key, producer_id=producer_id, epoch=epoch, control=True)


def batch(*arguments: Any, **named: Any) -> StoredBatch:
    return one(batch_bytes(*arguments, **named))


def marker(offset: int, *, commits: bool, **named: Any) -> StoredBatch:
    return one(marker_bytes(offset, commits=commits, **named))


def one(data: bytes) -> StoredBatch:
    (found,) = batches_in(memoryview(data))
    return found
