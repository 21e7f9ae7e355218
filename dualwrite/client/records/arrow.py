"""`send_batch()` of Arrow tables: encode record batches from columns, without a Python call per row.

A record is a few varints around bytes that Arrow has already laid out. numpy computes and writes the varints of all
records; Arrow's own kernel then interleaves them with the columns. Its output is, byte for byte, the records of a batch
one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from dualwrite.client.operations import Operation
from dualwrite.client.producer_core import ProducerCore
from dualwrite.client.records.arrow_columns import OFFSET_DELTA_BYTES, Rows, refused, rows_of
from dualwrite.client.records.arrow_varints import Ints, data_offsets, joined, varint_sizes, varints
from dualwrite.client.records.batches import HEADER_BYTES, EncodedBatch
from dualwrite.client.records.key_columns import OF_ALL_KEYS
from dualwrite.client.records.partition_queue import Batch

_ENCODED_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
_MOST_RECORDS: Final = 2 ** (7 * OFFSET_DELTA_BYTES - 1)


def _encode(rows: Rows, starts: Ints) -> tuple[Any, Ints]:
    """Encode the records of several batches, which begin at the rows `starts`.

    Returns all bytes, and where each record begins in them.
    """
    first = np.repeat(starts, np.diff(starts, append=len(rows)))
    time_deltas, offset_deltas = rows.timestamps_ms - rows.timestamps_ms[first], np.arange(len(rows)) - first
    lengths = 1 + varint_sizes(time_deltas) + varint_sizes(offset_deltas) + rows.content_sizes
    before_key = [lengths, np.zeros(1, np.int64), time_deltas, offset_deltas, rows.key.lengths]
    if rows.key.is_empty:
        parts = [varints([*before_key, rows.value.lengths])]
    else:
        parts = [varints(before_key), rows.key.array, varints([rows.value.lengths])]
    parts += [rows.value.array, varints([rows.header_counts])]
    if rows.header_counts.any():
        parts.append(rows.headers.array)
    records = joined(*parts)
    return records.buffers()[2], data_offsets(records)


class Planned(NamedTuple):
    """Rows and their batches. `order` sorts the rows by partition (None: they are sorted already).

    `starts` are the positions in that order at which the batches begin, `partitions` the partitions of the batches.
    Many batches are encoded at once, because one call of numpy or Arrow takes as long as encoding many records.
    """

    rows: Rows
    order: Ints | None
    starts: list[int]
    partitions: list[int]

    def batches(self, *, transactional: bool) -> Iterator[tuple[int, EncodedBatch]]:
        """Yield each batch with its partition, encoding some megabytes at a time."""
        ends = np.array([*self.starts[1:], len(self.rows)])
        sizes = np.cumsum(self.rows.sizes if self.order is None else self.rows.sizes[self.order])[ends - 1]
        at = 0
        while at < len(ends):
            until = max(at + 1, int(np.searchsorted(sizes, int(sizes[at]) + _ENCODED_AT_ONCE_BYTES)))
            encoded = self._encoded(self.starts[at:until], int(ends[until - 1]), transactional)
            yield from zip(self.partitions[at:until], encoded, strict=True)
            at = until

    def _encoded(self, starts: list[int], end: int, transactional: bool) -> Iterator[EncodedBatch]:
        rows = self.rows.slice(starts[0], end) if self.order is None else self.rows.take(self.order[starts[0] : end])
        begin = np.array(starts, np.int64) - starts[0]
        data, offsets = _encode(rows, begin)
        view = memoryview(data) if data is not None else memoryview(b"")
        first_ms, most_ms = rows.timestamps_ms[begin].tolist(), np.maximum.reduceat(rows.timestamps_ms, begin).tolist()
        counts = np.diff(begin, append=len(rows)).tolist()
        bounds = [*offsets[begin].tolist(), int(offsets[-1])]
        for place, count in enumerate(counts):
            yield EncodedBatch(
                view[bounds[place] : bounds[place + 1]],
                record_count=count,
                first_timestamp_ms=first_ms[place],
                max_timestamp_ms=most_ms[place],
                transactional=transactional,
            )


def batch_starts(sizes: Ints, limit: int) -> list[int]:
    """Return where batches begin, so that each but a single large record is within the limit."""
    ends = np.cumsum(sizes)
    starts, at = [], 0
    while at < len(sizes):
        starts.append(at)
        before = int(ends[at - 1]) if at else 0
        at = min(max(at + 1, int(np.searchsorted(ends, before + limit, side="right"))), at + _MOST_RECORDS)
    return starts


def check_sizes(rows: Rows, max_request_size: int, first_row: int) -> None:
    """Raise `InvalidRecordError`, which names the largest row, if it is too large for a request."""
    if len(rows) and int(rows.sizes.max()) + HEADER_BYTES > max_request_size:
        row = int(rows.sizes.argmax())
        raise refused(
            f"the record in row {first_row + row} takes up to {int(rows.sizes[row]) + HEADER_BYTES} bytes, "
            f"more than max.request.size={max_request_size}"
        )


def plan(rows: Rows, batch_size: int) -> Planned:
    """Divide the rows, all of which have a partition, into batches."""
    order, partitions, sizes = None, rows.partitions, rows.sizes
    if (partitions[1:] < partitions[:-1]).any():
        few = int(partitions.max()) < 2**15  # numpy sorts 16-bit numbers in a few passes
        order = np.argsort(partitions.astype(np.int16) if few else partitions, kind="stable")
        partitions, sizes = partitions[order], sizes[order]
    starts: list[int] = []
    partition_of_start: list[int] = []
    bounds = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(rows)]
    for first, end in pairwise(bounds):
        begin = batch_starts(sizes[first:end], batch_size - HEADER_BYTES)
        starts += [first + start for start in begin]
        partition_of_start += [int(partitions[first])] * len(begin)
    return Planned(rows, order, starts, partition_of_start)


class ArrowSource:
    """The records of a table that supports Arrow's C interface, for `BulkSend`.

    `took(batch, first_index, record_count)` is called for records that were accepted.
    """

    def __init__(
        self, topic: str, took: Callable[[Batch, int, int], None], core: ProducerCore, table: Any, now_ms: int
    ) -> None:
        self._topic = topic
        self._took = took
        self._core = core
        self._chunks = [rows for rows in rows_of(table, now_ms) if len(rows)]
        first_row = 0
        for rows in self._chunks:
            check_sizes(rows, core.config.max_request_size, first_row)
            first_row += len(rows)
        self.record_count = first_row

    def place(self, partitions: int) -> Iterator[Callable[[], Operation | None]]:
        """Give all rows their partitions, then yield steps that each accept one batch and free its bytes."""
        placed = [self._with_partitions(rows, partitions) for rows in self._chunks]
        self._chunks.clear()
        for rows in placed:
            yield from self._steps(plan(rows, self._core.config.batch_size))

    def _steps(self, planned: Planned) -> Iterator[Callable[[], Operation | None]]:
        for partition, encoded in planned.batches(transactional=self._core.config.transactional_id is not None):
            yield partial(self._accept, partition, encoded)

    def _accept(self, partition: int, encoded: EncodedBatch) -> Operation | None:
        batch = self._core.accept_encoded(self._topic, partition, encoded)
        if isinstance(batch, Operation):
            return batch
        self._took(batch, 0, encoded.record_count)
        return None

    def _with_partitions(self, rows: Rows, partitions: int) -> Rows:
        chosen = rows.partitions.copy()
        if int(chosen.max()) >= partitions:
            raise refused(f"{self._topic!r} has the partitions 0 to {partitions - 1}, not {int(chosen.max())}")
        missing = np.flatnonzero(chosen < 0)
        if len(missing):
            chosen[missing] = self._choose(rows, missing, partitions)
        return replace(rows, partitions=chosen)

    def _choose(self, rows: Rows, missing: Ints, partitions: int) -> Ints:
        choice = self._core.choice
        by_record, by_key = choice.by_record, choice.by_key
        if by_record is not None:
            topic = self._topic
            pairs = zip(
                rows.key.array.take(missing).to_pylist(), rows.value.array.take(missing).to_pylist(), strict=True
            )
            return np.array([by_record(topic, key, value, partitions) for key, value in pairs], np.int64)
        assert by_key is not None
        keyed = rows.key.lengths[missing] >= (1 if choice.empty_key_is_none else 0)
        chosen = np.empty(len(missing), np.int64)
        if keyed.any():
            data = rows.key.array.buffers()[2]
            keys = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
            chosen[keyed] = OF_ALL_KEYS[by_key](data_offsets(rows.key.array), keys, partitions)[missing[keyed]]
        if not keyed.all():
            chosen[~keyed] = self._fill(rows, missing[~keyed], partitions)
        return chosen

    def _fill(self, rows: Rows, keyless: Ints, partitions: int) -> Ints:
        """Return partitions for keyless rows: one after the other, a batch for each (KIP-480)."""
        starts = batch_starts(rows.sizes[keyless], self._core.config.batch_size - HEADER_BYTES)
        turns = np.searchsorted(np.array(starts), np.arange(len(keyless)), side="right") - 1
        first = self._core.choice.choose(self._topic, None, partitions)
        chosen: Ints = (first + turns) % partitions
        return chosen
