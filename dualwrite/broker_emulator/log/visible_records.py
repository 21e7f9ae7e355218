"""What consumers see of a partition, read straight from its batches; for tests that have no consumer at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dualwrite.broker_emulator.log.decompression import uncompressed
from dualwrite.broker_emulator.log.record_batch import Record, iter_records, parse_end_txn_marker, parse_header


def visible_records(batches: Sequence[bytes], *, end_offset: int, read_committed: bool) -> Iterator[Record]:
    """The records below `end_offset`: the high watermark, or with `read_committed` the last stable offset.

    `batches` go on to the end of the log, because the marker of a transaction may stand behind `end_offset`. Raises
    UnsupportedCompressionError where the codec of a batch is not installed.
    """
    aborted = _aborted(batches) if read_committed else set()
    for index, batch in enumerate(batches):
        if index in aborted or parse_header(batch).is_control:
            continue
        for record in iter_records(uncompressed(batch)):
            if record.offset < end_offset:
                yield record


def _aborted(batches: Sequence[bytes]) -> set[int]:
    """Which of them belong to a transaction that a marker aborts, by their place."""
    aborted: set[int] = set()
    open_batches: dict[int, list[int]] = {}
    for index, batch in enumerate(batches):
        header = parse_header(batch)
        if not header.is_transactional:
            continue
        if not header.is_control:
            open_batches.setdefault(header.producer_id, []).append(index)
            continue
        ended = open_batches.pop(header.producer_id, [])
        marker = parse_end_txn_marker(next(iter_records(batch)))
        if marker is not None and not marker.commit:
            aborted.update(ended)
    return aborted
