"""A topic's settings for its log: age of segments and of compacted records, timestamps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.configs.effective import with_topic_configs
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.record_batch import build_batch, iter_records
from dualwrite.broker_emulator.log.results import AppendResult
from dualwrite.broker_emulator.slices import at_once
from tests.emulator.log.disk import open_log
from tests.emulator.log.writers import NOW_MS

MakeLog = Callable[..., PartitionLog]
HOUR_MS = 3_600_000


@pytest.fixture(params=["memory", "disk"])
def make_log(request: pytest.FixtureRequest, tmp_path: Path) -> MakeLog:
    def make(**settings: str) -> PartitionLog:
        log = open_log(tmp_path / "orders-0") if request.param == "disk" else PartitionLog("orders", 0)
        configs = {name.replace("_", "."): text for name, text in settings.items()}
        log.configure(with_topic_configs(LogConfig(), configs))
        return log

    return make


def put(log: PartitionLog, key: str, value: str = "v", *, now_ms: int = NOW_MS) -> AppendResult:
    data = build_batch([(key.encode(), value.encode())], timestamp_ms=now_ms)
    result = log.append(data, now_ms=now_ms)
    assert result.error is ErrorCode.none, result
    return result


def compact(log: PartitionLog, now_ms: int) -> list[tuple[str, str]]:
    """Return the remaining records."""
    for _ in log.compact(now_ms):
        pass
    records = (record for batch in log.batches() for record in iter_records(batch))
    return [((record.key or b"").decode(), (record.value or b"").decode()) for record in records]


def test_the_age_of_a_segment_is_known_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path / "orders-0")
    put(log, "a")
    log.close()
    log = open_log(tmp_path / "orders-0")
    log.configure(with_topic_configs(LogConfig(), {"segment.ms": "1000", "retention.ms": "5000"}))
    put(log, "b", now_ms=NOW_MS + 1001)
    at_once(log.delete_old_segments(NOW_MS + 6001))
    assert log.log_start_offset == 1


def test_overdue_records_are_compacted_though_little_is_dirty(make_log: MakeLog) -> None:
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.9", "segment_bytes": "1000000"}
    log = make_log(**settings, max_compaction_lag_ms=str(HOUR_MS))
    for index in range(20):
        put(log, f"k{index}")
    put(log, "k0", "newer", now_ms=NOW_MS + HOUR_MS + 1)
    assert len(compact(log, NOW_MS + HOUR_MS)) == 21, "nothing is due yet"
    assert len(compact(log, NOW_MS + HOUR_MS + 2)) == 21, "the newer value is in the newest segment, which stays out"
    put(log, "k1", "newer", now_ms=NOW_MS + 2 * HOUR_MS + 2)
    left = compact(log, NOW_MS + 2 * HOUR_MS + 3)
    assert len(left) == 21
    assert ("k0", "v") not in left
