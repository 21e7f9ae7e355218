"""Batches of many records, compressed and not: neither looking for a time in them nor compaction holds up others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator, VirtualClock
from dualwrite.broker_emulator.log.record_batch import parse_header
from tests.emulator.api.raw_client import RawClient
from tests.emulator.hostile.turns import LONGEST, watched
from tests.emulator.inside import cluster_of, run_in_loop
from tests.support.conditions import until

RECORDS = 20_000
NOW_MS = 1_700_000_000_000
CLEANED_EVERY_MS = 60_000
NONE, GZIP = 0, 1


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(
        transaction_state_log_num_partitions=1,
        offsets_topic_num_partitions=1,
        message_max_bytes=16 << 20,
        log_cleaner_backoff_ms=CLEANED_EVERY_MS,
    )
    with Emulator(config=config, clock=VirtualClock(NOW_MS)) as broker:
        # each batch has a segment of its own
        settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"}
        broker.create_topic("t", 1, settings)
        yield broker


def _batch(compression: int, count: int = RECORDS, begins_ms: int = NOW_MS) -> bytes:
    """Return a batch in which only the last record has the later time, and each record a key of its own."""
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, -1, 64 << 20)
    for index in range(count):
        time_ms = begins_ms + (5 if index == count - 1 else 0)
        builder.append(index, time_ms, str(index).encode(), b"v" * 20, headers=[])
    return bytes(builder.build())


def _produce(client: RawClient, batch: bytes) -> None:
    assert client.produce("t", batch, timeout_ms=60_000).error_code is ErrorCode.none


@pytest.mark.parametrize("compression", [NONE, GZIP])
def test_the_offset_of_a_time(emulator: Emulator, compression: int) -> None:
    with RawClient(emulator.bootstrap_servers) as client:
        _produce(client, _batch(compression))
        with watched(emulator) as turns:
            found = client.list_offsets("t", NOW_MS + 5)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.none, RECORDS - 1, NOW_MS + 5)
    assert turns.longest < LONGEST


@pytest.mark.parametrize("compression", [NONE, GZIP])
def test_compaction(emulator: Emulator, compression: int) -> None:
    """The second batch has new records of half of the keys of the first."""

    def record_counts() -> list[int]:
        log = cluster_of(emulator).topics["t"].partitions[0].log
        return [parse_header(batch).record_count for batch in log.batches()]

    with RawClient(emulator.bootstrap_servers) as client:
        for number, count in enumerate((RECORDS, RECORDS // 2, 1)):
            _produce(client, _batch(compression, count, NOW_MS + 100 * number))
    with watched(emulator) as turns:
        emulator.advance_clock(CLEANED_EVERY_MS)
        until(lambda: run_in_loop(emulator, record_counts) == [RECORDS // 2, RECORDS // 2, 1], 60)
    assert turns.longest < LONGEST
