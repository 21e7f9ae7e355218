"""Record batches as brokers store them: their headers, and their records byte for byte."""

from __future__ import annotations

from typing import NamedTuple

from dualwrite.client.records.batches import Header


class StoredRecord(NamedTuple):
    """A record as it is stored; `timestamp_ms` is milliseconds since 1970, the broker's if the topic says so."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp_ms: int
    offset: int
