"""A topic's settings for its log: the ages of segments and of compacted records."""

from __future__ import annotations

from pathlib import Path

from dualwrite.broker_emulator.configs.effective import with_topic_configs
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.slices import at_once
from tests.emulator.log.disk import open_log
from tests.emulator.log.test_cleaner import MakeLog, compact, data, put
from tests.emulator.log.test_cleaner import make_log as make_log
from tests.emulator.log.writers import NOW_MS

HOUR_MS = 3_600_000


def test_the_age_of_a_segment_is_known_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path / "orders-0")
    put(log, ("a", "v"))
    log.close()
    log = open_log(tmp_path / "orders-0")
    log.configure(with_topic_configs(LogConfig(), {"segment.ms": "1000", "retention.ms": "5000"}))
    put(log, ("b", "v"), now_ms=NOW_MS + 1001)
    at_once(log.delete_old_segments(NOW_MS + 6001))
    assert log.log_start_offset == 1


def test_overdue_records_are_compacted_though_little_is_dirty(make_log: MakeLog) -> None:
    log = make_log(min_cleanable_dirty_ratio=0.9, segment_bytes=1_000_000, max_compaction_lag_ms=HOUR_MS)
    put(log, *[(f"k{index}", "v") for index in range(20)])
    put(log, ("k0", "newer"), now_ms=NOW_MS + HOUR_MS + 1)
    compact(log, NOW_MS + HOUR_MS)
    assert len(data(log)) == 21, "nothing is due yet"
    compact(log, NOW_MS + HOUR_MS + 2)
    assert len(data(log)) == 21, "the newer value is in the newest segment, which stays out"
    put(log, ("k1", "newer"), now_ms=NOW_MS + 2 * HOUR_MS + 2)
    compact(log, NOW_MS + 2 * HOUR_MS + 3)
    assert len(data(log)) == 21
    assert (0, "k0", "v") not in data(log)
