"""`send_batch()`: everything is read, serialized and validated before the first record is accepted.

Then records are accepted as room becomes free. `advance` returns the operation that has to end first, so that a thread
can block on it and a coroutine can await it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, Protocol

from dualwrite.client.operations import Operation
from dualwrite.client.producer_core import ProducerCore
from dualwrite.client.records.partition_queue import Batch, Part
from dualwrite.client.records.record import ReadyRecord, Record
from dualwrite.client.records.send_arguments import (
    checked_headers,
    checked_partition,
    checked_timestamp_ms,
    checked_topic,
    encoded,
)
from dualwrite.client.records.traces import end, fail
from dualwrite.errors import ConfigError, InvalidRecordError
from dualwrite.partitioners import KeyPartitioner

_BATCH_HEADER_BYTES: Final = 61
_RECORD_OVERHEAD_BYTES: Final = 36  # at most, without key, value and headers
_HEADER_OVERHEAD_BYTES: Final = 10
_ACCEPTED_AT_ONCE: Final = 256  # under one acquisition of the lock
_VALUES_ACCEPTED_AT_ONCE: Final = 2048
_FIELDS: Final = tuple(Record.__dataclass_fields__)


class _Source(Protocol):
    """Records that were read and validated without knowing the number of partitions."""

    record_count: int

    def place(self, partitions: int) -> Iterator[Callable[[], Operation | None]]:
        """Finish the validation that needs the number of partitions, then yield steps that accept records.

        Each step is called until it returns None; otherwise it returns the operation that has to end first.
        """


class BulkSend:
    """One call of `send_batch()`."""

    def __init__(self, core: ProducerCore, topic: Any, records: Any) -> None:
        self.topic: Final = checked_topic(topic)
        self.parts: Final[list[Part]] = []
        self.accepted = 0
        self._core = core
        now_ms = time.time_ns() // 1_000_000
        self._source = _source(self, core, records, now_ms)
        self.record_count: Final = self._source.record_count
        self._steps: Iterator[Callable[[], Operation | None]] | None = None
        self._step: Callable[[], Operation | None] | None = None

    def advance(self) -> Operation | None:
        """Accept as many records as fit; return the operation to wait for, or None when all are accepted."""
        if self._steps is None:
            partitions = self._core.partitions_of(self.topic)
            if isinstance(partitions, Operation):
                return partitions
            self._steps = self._source.place(partitions)
        while True:
            if self._step is None:
                self._step = next(self._steps, None)
                if self._step is None:
                    return None
            waiting = self._step()
            if waiting is not None:
                return waiting
            self._step = None

    def progress(self) -> str:
        """Return how many records were accepted, for the error of a call that gives up."""
        if not self.accepted:
            return "none of it was sent"
        return f"{self.accepted} of the {self.record_count} records were accepted"

    def took(self, batch: Batch, first_index: int, record_count: int) -> None:
        """Note that these records were accepted."""
        self.accepted += record_count
        if self.parts and self.parts[-1].batch is batch:
            last = self.parts[-1]
            if last.first_index + last.record_count == first_index:
                self.parts[-1] = Part(batch, last.first_index, last.record_count + record_count)
                return
        self.parts.append(Part(batch, first_index, record_count))


def _source(bulk: BulkSend, core: ProducerCore, records: Any, now_ms: int) -> _Source:
    if hasattr(records, "__arrow_c_stream__") or hasattr(records, "__arrow_c_array__"):
        try:
            from dualwrite.client.records.arrow import ArrowSource
        except ImportError as error:
            raise ConfigError(
                f"send_batch() of an Arrow table needs a package that is not installed ({error.name}): "
                "pip install 'dualwrite[arrow]'"
            ) from error
        return ArrowSource(bulk.topic, bulk.took, core, records, now_ms)
    if isinstance(records, str | bytes | bytearray | memoryview | Mapping) or not isinstance(records, Iterable):
        raise InvalidRecordError(
            f"send_batch() takes an iterable of records or an Arrow table, not {type(records).__name__}; none of it "
            "was sent"
        )
    listed = list(records)
    if core.sends_values_as_they_are and set(map(type, listed)) == {bytes}:
        return ValueSource(bulk, core, listed, now_ms)
    return IterableSource(bulk, core, listed, now_ms)


class ValueSource:
    """Values that are bytes, without keys, headers, partitions or timestamps."""

    def __init__(self, bulk: BulkSend, core: ProducerCore, values: list[bytes], now_ms: int) -> None:
        largest = max(map(len, values))
        if largest + _BATCH_HEADER_BYTES + _RECORD_OVERHEAD_BYTES > core.config.max_request_size:
            place = next(place for place, value in enumerate(values) if len(value) == largest)
            raise _too_large(place, largest + _BATCH_HEADER_BYTES + _RECORD_OVERHEAD_BYTES, core)
        self._bulk = bulk
        self._core = core
        self._values = values
        self._now_ms = now_ms
        self.record_count = len(values)

    def place(self, partitions: int) -> Iterator[Callable[[], Operation | None]]:
        """See `_Source`."""
        yield self._accept_more

    def _accept_more(self) -> Operation | None:
        while self._bulk.accepted < self.record_count:
            some = self._values[self._bulk.accepted : self._bulk.accepted + _VALUES_ACCEPTED_AT_ONCE]
            waiting = self._core.accept_values(self._bulk.topic, some, self._now_ms, self._bulk.took)
            if waiting is not None:
                return waiting
        return None


class IterableSource:
    """An iterable of values, (key, value) pairs, mappings or `Record`s."""

    def __init__(self, bulk: BulkSend, core: ProducerCore, records: list[Any], now_ms: int) -> None:
        self._bulk = bulk
        self._core = core
        self._tracer = core.tracer
        self._span = None if core.tracer is None else core.tracer.send_batch(bulk.topic, len(records))
        try:
            self._records = [self._ready(place, record, now_ms) for place, record in enumerate(records)]
        except BaseException as error:
            if self._span is not None:
                fail(self._span, error)
            raise
        if self._span is not None:
            end(self._span)
        self.record_count = len(self._records)

    def _ready(self, place: int, given: Any, now_ms: int) -> ReadyRecord:
        try:
            ready = self._checked(*_fields_of(given), now_ms)
        except InvalidRecordError as error:
            raise _refused(place, error) from error.__cause__
        size = _size_at_most(ready)
        if size > self._core.config.max_request_size:
            raise _too_large(place, size, self._core)
        return ready

    def _checked(
        self, value: Any, key: Any, headers: Any, partition: Any, timestamp_ms: Any, now_ms: int
    ) -> ReadyRecord:
        checked = [] if headers is None else checked_headers(headers)
        if self._core.serializers.any:
            key, value = self._core.serializers.apply(self._bulk.topic, key, value, checked)
        if self._span is not None and self._tracer is not None:
            self._tracer.join_batch(self._span, checked)
        return ReadyRecord(
            value if type(value) is bytes else encoded("value", value),
            key if type(key) is bytes else encoded("key", key),
            checked,
            None if partition is None else checked_partition(partition),
            now_ms if timestamp_ms is None else checked_timestamp_ms(timestamp_ms),
        )

    def place(self, partitions: int) -> Iterator[Callable[[], Operation | None]]:
        """See `_Source`."""
        self._apply_partitioner(partitions)
        self._hash_keys(partitions)
        for place, record in enumerate(self._records):
            if record.partition is not None and record.partition >= partitions:
                raise _refused(
                    place, f"{self._bulk.topic!r} has the partitions 0 to {partitions - 1}, not {record.partition}"
                )
        yield self._accept_more

    def _apply_partitioner(self, partitions: int) -> None:
        partitioner = self._core.choice.by_record
        if partitioner is None:
            return
        topic = self._bulk.topic
        for place, record in enumerate(self._records):
            if record.partition is None:
                try:
                    partition = partitioner(topic, record.key, record.value, partitions)
                except InvalidRecordError as error:
                    raise _refused(place, error) from error.__cause__
                self._records[place] = record._replace(partition=partition)

    def _hash_keys(self, partitions: int) -> None:
        """Hash all keys at once if numpy is installed: hashing them one by one takes longer than all other work."""
        by_key = self._core.choice.by_key
        partitions_of_keys = _key_hasher()
        if by_key is None or partitions_of_keys is None:
            return
        places = [place for place, record in enumerate(self._records) if record.partition is None and record.key]
        chosen = partitions_of_keys(by_key, [self._records[place].key or b"" for place in places], partitions)
        for place, partition in zip(places, chosen, strict=True):
            value, key, headers, _, timestamp_ms = self._records[place]
            self._records[place] = ReadyRecord(value, key, headers, partition, timestamp_ms)

    def _accept_more(self) -> Operation | None:
        while self._bulk.accepted < self.record_count:
            some = self._records[self._bulk.accepted : self._bulk.accepted + _ACCEPTED_AT_ONCE]
            waiting = self._core.accept_records(self._bulk.topic, some, self._bulk.took)
            if waiting is not None:
                return waiting
        return None


@cache
def _key_hasher() -> Callable[[KeyPartitioner, list[bytes], int], list[int]] | None:
    """Return the hash function for many keys, None without numpy, which is imported at the first batch with keys."""
    try:
        from dualwrite.client.records.key_columns import partitions_of_keys
    except ImportError:
        return None
    return partitions_of_keys


def _fields_of(given: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return value, key, headers, partition and timestamp of a record in any accepted form."""
    if isinstance(given, tuple):
        if len(given) != 2:
            raise InvalidRecordError(f"a tuple is (key, value), not {len(given)} elements; the record was not sent")
        return given[1], given[0], None, None, None
    if isinstance(given, Record):
        return given.value, given.key, given.headers, given.partition, given.timestamp_ms
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in _FIELDS]
        if unknown or not given:
            raise InvalidRecordError(
                f"a mapping has some of {', '.join(_FIELDS)}, not {', '.join(map(repr, unknown)) or 'nothing'} "
                "(for a value that is a mapping, use Record(value)); the record was not sent"
            )
        value, key, headers, partition, timestamp_ms = map(given.get, _FIELDS)
        return value, key, headers, partition, timestamp_ms
    return given, None, None, None, None


def _size_at_most(record: ReadyRecord) -> int:
    size = _BATCH_HEADER_BYTES + _RECORD_OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        size += _HEADER_OVERHEAD_BYTES + len(name.encode()) + (0 if value is None else len(value))
    return size


def _too_large(place: int, size: int, core: ProducerCore) -> InvalidRecordError:
    limit = core.config.max_request_size
    return _refused(place, f"it takes up to {size} bytes, more than max.request.size={limit}")


def _refused(place: int, why: object) -> InvalidRecordError:
    sentence = str(why).removesuffix("; the record was not sent").removesuffix("; it was not sent")
    return InvalidRecordError(f"record {place}: {sentence}; none of the batch was sent")
