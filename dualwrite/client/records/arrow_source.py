"""`send_batch()` of Arrow's tables: rows get partitions, then batches are encoded as they are accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dualwrite.client.producer_core import ProducerCore
from dualwrite.client.records.arrow import (
    Ints,
    Limits,
    Planned,
    Rows,
    batch_starts,
    check_sizes,
    key_bytes,
    plan,
    rows_of,
)
from dualwrite.client.records.encoded_batch import HEADER_BYTES, EncodedBatch
from dualwrite.client.records.key_columns import OF_ALL_KEYS
from dualwrite.client.transactions.operations import Operation
from dualwrite.errors import InvalidRecordError

if TYPE_CHECKING:
    from dualwrite.client.records.bulk import BulkSend


class ArrowSource:
    """The rows of anything that speaks Arrow's C interface."""

    def __init__(self, bulk: BulkSend, core: ProducerCore, table: Any, now_ms: int) -> None:
        self._bulk = bulk
        self._core = core
        self._limits = Limits(core.config.batch_size, core.config.max_request_size)
        self._chunks = [rows for rows in rows_of(table, now_ms) if len(rows)]
        first_row = 0
        for rows in self._chunks:
            check_sizes(rows, self._limits, HEADER_BYTES, first_row)
            first_row += len(rows)
        self.record_count = first_row

    def place(self, partitions: int) -> Iterator[Callable[[], Operation | None]]:
        """All rows get their partitions first; what is encoded is not kept longer than until it is accepted."""
        placed = [self._with_partitions(rows, partitions) for rows in self._chunks]
        self._chunks.clear()
        for rows in placed:
            yield from self._steps(plan(rows, self._limits, HEADER_BYTES))

    def _steps(self, planned: Planned) -> Iterator[Callable[[], Operation | None]]:
        for partition, encoded in planned.batches(transactional=self._core.config.transactional_id is not None):
            yield partial(self._accept, partition, encoded)

    def _accept(self, partition: int, encoded: EncodedBatch) -> Operation | None:
        batch = self._core.accept_encoded(self._bulk.topic, partition, encoded)
        if isinstance(batch, Operation):
            return batch
        self._bulk.took(batch, 0, encoded.record_count)
        return None

    # ---- partitions -----------------------------------------------------------------------------------------

    def _with_partitions(self, rows: Rows, partitions: int) -> Rows:
        chosen = rows.partitions.copy()
        if int(chosen.max()) >= partitions:
            raise InvalidRecordError(
                f"{self._bulk.topic!r} has the partitions 0 to {partitions - 1}, not {int(chosen.max())}; "
                "nothing of it was sent"
            )
        missing = np.flatnonzero(chosen < 0)
        if len(missing):
            chosen[missing] = self._choose(rows, missing, partitions)
        return replace(rows, partitions=chosen)

    def _choose(self, rows: Rows, missing: Ints, partitions: int) -> Ints:
        choice = self._core.choice
        ask, by_key = choice.by_record, choice.by_key
        if ask is not None:
            topic = self._bulk.topic
            pairs = zip(
                rows.key.array.take(missing).to_pylist(), rows.value.array.take(missing).to_pylist(), strict=True
            )
            return np.array([ask(topic, key, value, partitions) for key, value in pairs], np.int64)
        assert by_key is not None
        keyed = rows.key.lengths[missing] >= (1 if choice.empty_key_is_none else 0)
        chosen = np.empty(len(missing), np.int64)
        if keyed.any():
            chosen[keyed] = OF_ALL_KEYS[by_key](*key_bytes(rows.key), partitions)[missing[keyed]]
        if not keyed.all():
            chosen[~keyed] = self._fill(rows, missing[~keyed], partitions)
        return chosen

    def _fill(self, rows: Rows, keyless: Ints, partitions: int) -> Ints:
        """One partition after the other, a batch for each (KIP-480)."""
        starts = batch_starts(rows.sizes[keyless], self._limits.batch_size - HEADER_BYTES)
        turns = np.searchsorted(np.array(starts), np.arange(len(keyless)), side="right") - 1
        first = self._core.choice.choose(self._bulk.topic, None, partitions)
        chosen: Ints = (first + turns) % partitions
        return chosen
