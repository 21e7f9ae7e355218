"""The records of a partition that consumers see, read straight from its batches; for tests without a consumer.

The broker stores and serves compressed batches as they are. `record_batch.iter_records` decompresses only gzip; this
module also decompresses snappy, lz4 and zstd, with cramjam if it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dualwrite.broker_emulator.log.compression import (
    GZIP,
    MOST_BYTES,
    NAMES,
    NONE,
    CodecMissingError,
    DecompressionError,
    ExpansionError,
    decompressed,
)
from dualwrite.broker_emulator.log.record_batch import (
    HEADER_BYTES,
    CorruptRecordError,
    EndTxnMarker,
    Record,
    UnsupportedCompressionError,
    iter_records,
    parse_end_txn_marker,
    parse_header,
    with_records,
)


class LoggedRecord(NamedTuple):
    """A record or marker, with the outcome of its transaction."""

    record: Record
    producer_id: int
    is_transactional: bool
    is_committed: bool | None
    """None if the transaction is open, or if there is none."""
    marker: EndTxnMarker | None


def visible_records(
    batches: Sequence[bytes], *, start_offset: int = 0, end_offset: int, read_committed: bool
) -> Iterator[Record]:
    """Yield the records below `end_offset`: the high watermark or, with `read_committed`, the last stable offset.

    `batches` must reach to the end of the log, because the marker of a transaction may come after `end_offset`. They
    may begin before `start_offset`, as the batch at that offset may contain deleted records. Raises
    UnsupportedCompressionError if the codec of a batch is not installed.
    """
    committed = _outcomes(batches) if read_committed else {}
    for index, batch in enumerate(batches):
        if committed.get(index) is False or parse_header(batch).is_control:
            continue
        for record in iter_records(uncompressed(batch)):
            if start_offset <= record.offset < end_offset:
                yield record


def logged_records(
    batches: Sequence[bytes], *, start_offset: int, end_offset: int, read_committed: bool, with_markers: bool
) -> Iterator[LoggedRecord]:
    """Yield the records of `visible_records` with the outcomes of their transactions and, if requested, the markers."""
    committed = _outcomes(batches)
    for index, batch in enumerate(batches):
        header = parse_header(batch)
        is_committed = committed.get(index)
        if (read_committed and is_committed is False) or (header.is_control and not with_markers):
            continue
        for record in iter_records(uncompressed(batch)):
            if start_offset <= record.offset < end_offset:
                marker = parse_end_txn_marker(record) if header.is_control else None
                yield LoggedRecord(record, header.producer_id, header.is_transactional, is_committed, marker)


def _outcomes(batches: Sequence[bytes]) -> dict[int, bool]:
    """Return which batches of ended transactions were committed, by the indexes of the batches."""
    outcomes: dict[int, bool] = {}
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
        if marker is not None:
            outcomes.update(dict.fromkeys(ended, marker.commit))
    return outcomes


def uncompressed(batch: bytes) -> bytes:
    """Decompress the records of a batch; an uncompressed or gzip batch is returned as it is.

    Raises UnsupportedCompressionError if cramjam is needed and not installed, CorruptRecordError if the records do not
    decompress.
    """
    header = parse_header(batch)
    if header.compression in (NONE, GZIP):
        return batch
    name = NAMES.get(header.compression, str(header.compression))
    try:
        body = decompressed(header.compression, batch[HEADER_BYTES : header.size_bytes], MOST_BYTES)
    except CodecMissingError:
        raise UnsupportedCompressionError(
            f"the records at offset {header.base_offset} are compressed with {name}; reading them needs the package "
            "cramjam. The records are intact: install cramjam, or let the producer use none or gzip"
        ) from None
    except (DecompressionError, ExpansionError) as error:
        raise CorruptRecordError(f"the records of a {name} batch do not decompress") from error
    return with_records(header, body)
