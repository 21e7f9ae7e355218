"""The records of a topic, so that a test suite in any language can assert without a consumer."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Literal, TypeAlias

from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.endpoints.topics import PartitionPath, TopicPath, find_partition
from dualwrite.broker_emulator.control.errors import bad_request, conflict
from dualwrite.broker_emulator.control.shapes import AtLeast, Limit, first
from dualwrite.broker_emulator.handles import LogSnapshot, snapshot
from dualwrite.broker_emulator.log.reading import LoggedRecord, logged_records
from dualwrite.broker_emulator.log.record_batch import CorruptRecordError, UnsupportedCompressionError

Encoding: TypeAlias = Literal["text", "base64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderView:
    """A header of a record; its value has the same encoding as the record's."""

    key: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """A record, or with `markers` the marker that ends a transaction in its partition."""

    partition: int
    offset: int
    timestamp_ms: Annotated[int, "Milliseconds since the Unix epoch."]
    key: Annotated[str | None, "As `encoding` says; null for a record without a key."]
    value: Annotated[str | None, "As `encoding` says; null for a tombstone."]
    headers: tuple[HeaderView, ...]
    producer_id: Annotated[int | None, "Null for a producer that is not idempotent."]
    transaction: Annotated[
        Literal["open", "committed", "aborted"] | None, "How its transaction ended; null if it has none."
    ]
    marker: Annotated[Literal["commit", "abort"] | None, "Null for a record."]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordList:
    """Records, by partition and offset."""

    records: tuple[RecordView, ...]
    total: Annotated[int, "How many there are in all, regardless of the limit."]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuery:
    """Selects records and the encoding of bytes."""

    partition: Annotated[int, AtLeast(0)] | None = None
    offset: Annotated[Annotated[int, AtLeast(0)] | None, "The first offset; needs a partition."] = None
    isolation: Annotated[
        Literal["read_committed", "read_uncommitted"],
        "As a consumer's isolation.level: up to the last stable offset without aborted records, or up to the high "
        "watermark with them.",
    ] = "read_committed"
    encoding: Annotated[Encoding, "text is UTF-8, and 409 for bytes that are not."] = "text"
    markers: Annotated[bool, "Whether the markers of transactions are listed too."] = False
    limit: Limit = 1000


async def list_all(controlled: ControlledEmulator, path: TopicPath, query: RecordQuery) -> RecordList:
    if query.offset is not None and query.partition is None:
        raise bad_request("'query.offset' needs a 'query.partition': offsets are counted in each partition")
    logs = dict(_logs(controlled, path.topic, query.partition))
    try:
        # reading many records takes long: clients are served meanwhile
        return await asyncio.to_thread(_read, path.topic, logs, query)
    except (UnsupportedCompressionError, CorruptRecordError) as error:
        raise conflict(str(error)) from None


def _logs(controlled: ControlledEmulator, name: str, index: int | None) -> Iterator[tuple[int, LogSnapshot]]:
    topic = controlled.cluster.topics.get(name)
    if topic is None:  # it was never written to
        return
    chosen = (
        topic.partitions if index is None else [find_partition(controlled, PartitionPath(topic=name, partition=index))]
    )
    for partition in chosen:
        yield partition.index, snapshot(partition)


def _read(topic: str, logs: dict[int, LogSnapshot], query: RecordQuery) -> RecordList:
    read_committed = query.isolation == "read_committed"
    found = (
        (partition, logged)
        for partition, log in logs.items()
        for logged in logged_records(
            log.batches,
            start_offset=max(log.log_start_offset, query.offset or 0),
            end_offset=log.last_stable_offset if read_committed else log.high_watermark,
            read_committed=read_committed,
            with_markers=query.markers,
        )
    )
    shown, total = first(found, query.limit)
    return RecordList(
        records=tuple(_view(topic, partition, logged, query.encoding) for partition, logged in shown), total=total
    )


def _view(topic: str, partition: int, logged: LoggedRecord, encoding: Encoding) -> RecordView:
    record, marker = logged.record, logged.marker
    where = f"at offset {record.offset} of {topic}-{partition}"
    is_control = marker is not None
    return RecordView(
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=None if is_control else _encoded(record.key, encoding, f"the key {where}"),
        value=None if is_control else _encoded(record.value, encoding, f"the value {where}"),
        headers=tuple(
            HeaderView(key=each.key, value=_encoded(each.value, encoding, f"the header {each.key!r} {where}"))
            for each in record.headers
        ),
        producer_id=None if logged.producer_id < 0 else logged.producer_id,
        transaction=None if is_control else _transaction(logged),
        marker=None if marker is None else "commit" if marker.commit else "abort",
    )


def _transaction(logged: LoggedRecord) -> Literal["open", "committed", "aborted"] | None:
    if not logged.is_transactional:
        return None
    if logged.is_committed is None:
        return "open"
    return "committed" if logged.is_committed else "aborted"


def _encoded(content: bytes | None, encoding: Encoding, what: str) -> str | None:
    if content is None:
        return None
    if encoding == "base64":
        return base64.b64encode(content).decode("ascii")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise conflict(f"{what} is not UTF-8 text; encoding=base64 shows every byte", "not-text") from None


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/topics/{topic}/records",
        list_all,
        "The records of a topic as consumers get them; none if the topic was never used",
        (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    ),
)
