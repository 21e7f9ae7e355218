"""Split a batch that is too large for its topic, by reading its records back from the sent bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dualwrite.client.records.batch_reading import batches_in, records_of
from dualwrite.client.records.batches import BatchRecords, BuiltBatch, Header


def halves_of(
    data: BuiltBatch, new_records: Callable[[bytes | None, bytes | None, list[Header]], BatchRecords]
) -> Iterator[tuple[BatchRecords, int]]:
    """Yield the records of a finished batch in two halves, each with its number of records.

    The halves are by number, so that each is smaller for any sizes of records. There are more than two if a half is
    larger than `batch.size`, as one of an Arrow table may be.
    """
    (batch,) = batches_in(memoryview(data))
    records = records_of("", -1, batch)
    middle = len(records) // 2
    for half in (records[:middle], records[middle:]):
        built: BatchRecords | None = None
        count = 0
        for record in half:
            given = record.timestamp_ms, record.key, record.value, record.headers
            if built is not None and built.append(count, *given) is None:
                yield built, count
                built = None
            if built is None:
                built, count = new_records(record.key, record.value, record.headers), 0
                built.append(0, *given)
            count += 1
        assert built is not None
        yield built, count
