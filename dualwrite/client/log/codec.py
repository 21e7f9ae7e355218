"""Encode Fetch requests and decode their responses, with kafka-python's generated codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dualwrite.client.admin.codec import Call, Reply
from dualwrite.client.kafka_python import FetchRequest, FetchResponse
from dualwrite.client.records.batch_reading import StoredBatch, batches_in
from dualwrite.client.records.record import TopicPartition
from dualwrite.client.wire import compiled
from dualwrite.errors import Api

_VERSIONS: Final = (4, 12)
"""From isolation levels (KIP-98) to the last version with topic names; version 13 has topic ids (KIP-516)."""

_OFFSET_OUT_OF_RANGE: Final = 1

_MOST_BYTES: Final = 1_048_576
"""The most bytes of a response, except that one batch always comes (KIP-74)."""

_FEW_BYTES: Final = 65_536
"""The most bytes of a partition where one batch is enough, so that many partitions fit into a response."""


class Fetched(NamedTuple):
    """A leader's batches of a partition. The first batch may begin before the requested offset."""

    batches: tuple[StoredBatch, ...]
    high_watermark: int
    last_stable_offset: int
    aborted: tuple[tuple[int, int], ...] = ()
    """With read_committed: producer id and first offset of the aborted transactions among the batches."""
    out_of_range: bool = False
    """Whether the log has no such offset: it begins later, or ends earlier."""


FetchCall = Call[dict[TopicPartition, Reply[Fetched]]]


def fetch(offsets: Mapping[TopicPartition, int], *, read_committed: bool) -> FetchCall:
    """Return the request for the batches from those offsets on, which is answered at once.

    `read_committed`: only decided records, with the list of aborted transactions; the first batch is enough. Else as
    much as fits. If the response has no room for a batch of a partition, that partition is empty; the first one with
    data gets one batch.
    """
    topic_class = FetchRequest.FetchTopic
    partition_class: Any = topic_class.FetchPartition
    partition_bytes = _FEW_BYTES if read_committed else _MOST_BYTES

    def encode(version: int) -> bytes:
        by_topic: dict[str, list[Any]] = {}
        for (topic, partition), offset in offsets.items():
            wanted = partition_class(
                version=version, partition=partition, fetch_offset=offset, partition_max_bytes=partition_bytes
            )
            by_topic.setdefault(topic, []).append(wanted)
        request = FetchRequest(
            version=version,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_MOST_BYTES,
            isolation_level=int(read_committed),
            topics=[topic_class(version=version, topic=topic, partitions=parts) for topic, parts in by_topic.items()],
        )
        return compiled.encode(request, version)

    def decode(body: memoryview, version: int) -> dict[TopicPartition, Reply[Fetched]]:
        response = compiled.decode(FetchResponse, body, version)
        if response.error_code:
            return dict.fromkeys(offsets, Reply(response.error_code))
        return {
            TopicPartition(topic.topic, row.partition_index): _reply(row)
            for topic in response.responses
            for row in topic.partitions
        }

    return Call(Api.FETCH, _VERSIONS, encode, decode)


def _reply(row: Any) -> Reply[Fetched]:
    if row.error_code == _OFFSET_OUT_OF_RANGE:
        return Reply(0, Fetched((), row.high_watermark, row.last_stable_offset, out_of_range=True))
    if row.error_code:
        return Reply(row.error_code)
    fetched = Fetched(
        tuple(batches_in(memoryview(row.records or b""))),
        row.high_watermark,
        row.last_stable_offset,
        tuple((aborted.producer_id, aborted.first_offset) for aborted in row.aborted_transactions or ()),
    )
    return Reply(0, fetched)
