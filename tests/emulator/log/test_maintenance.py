"""The periodic work on all logs: an error in one of them affects no other."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.cluster.periodic_work import LogMaintenance
from dualwrite.broker_emulator.log.log_config import CleanupPolicy, LogConfig
from dualwrite.broker_emulator.log.partition_log import AppendOrigin, PartitionLog
from dualwrite.broker_emulator.log.record_batch import build_batch, parse_header
from tests.emulator.log.bad_batches import RECORD, batch, record
from tests.emulator.log.writers import NOW_MS

COMPACTED = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}), segment_bytes=1, min_cleanable_dirty_ratio=0.0)


def _log(*batches: bytes) -> PartitionLog:
    log = PartitionLog("t", 0, config=COMPACTED)
    for data in batches:
        result = log.append(data, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
        assert result.error == 0, result
    return log


def _good_batches() -> list[bytes]:
    return [build_batch([(b"a", str(number).encode())], timestamp_ms=NOW_MS) for number in range(3)]


def _records(log: PartitionLog) -> int:
    return sum(parse_header(data).record_count for data in log.batches())


def _compact(*logs: Any) -> None:
    async def run() -> None:
        maintenance = LogMaintenance(VirtualClock(NOW_MS), lambda: logs)
        maintenance.compact()
        await maintenance.finished()

    asyncio.run(run())


@pytest.mark.parametrize(
    "bad",
    [
        batch(b"rubbish that is no record"),
        batch(b"\xff" * 30),
        batch(record(timestamp_delta=b"\xff" * 9 + b"\1", key=b"\2k", value=b"\1"), base_timestamp=-(2**63)),
        batch(record(key=b"\2k", value=b"\1", headers=b"\2\2\xff\1")),
        batch(RECORD, attributes=7),
    ],
    ids=["rubbish", "endless", "a time that wraps around", "a header that is no text", "codec 7"],
)
def test_a_bad_batch_stops_only_the_compaction_of_its_log(bad: bytes) -> None:
    other = _log(*_good_batches())
    _compact(_log(bad, bad, *_good_batches()), other)
    assert _records(other) == 2


@pytest.mark.parametrize("error", [struct.error, OverflowError, MemoryError, KeyError, AssertionError])
def test_a_failure_in_one_log_does_not_stop_the_compaction_of_the_rest(error: type[Exception]) -> None:
    class Broken:
        topic, partition = "t", 1

        def compact(self, _: int) -> Iterator[None]:
            yield
            raise error

    other = _log(*_good_batches())
    _compact(Broken(), other)
    assert _records(other) == 2
