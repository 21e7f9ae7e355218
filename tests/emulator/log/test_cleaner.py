"""Compaction and retention, on disk and in memory, with the rules of transactions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.configs.effective import with_topic_configs
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.memory_segment import MemoryBudget, MemoryStorage
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.record_batch import build_batch, iter_records, parse_header
from dualwrite.broker_emulator.slices import at_once
from tests.emulator.log.bad_batches import GZIP, SNAPPY, compressed, record
from tests.emulator.log.bad_batches import batch as raw_batch
from tests.emulator.log.disk import open_log
from tests.emulator.log.writers import NOW_MS, WRITERS, end_transaction, foreign_batches
from tests.support.proof_only import examples

DAY_MS = 86_400_000
MakeLog = Callable[..., PartitionLog]


@pytest.fixture(params=["memory", "disk"])
def make_log(request: pytest.FixtureRequest, tmp_path: Path) -> MakeLog:
    def make(policy: str = "compact", **settings: Any) -> PartitionLog:
        settings = {"segment_bytes": 1, "min_cleanable_dirty_ratio": 0.0} | settings
        config = with_topic_configs(LogConfig(**settings), {"cleanup.policy": policy})
        log = open_log(tmp_path / "orders-0") if request.param == "disk" else PartitionLog("orders", 0)
        log.configure(config)
        return log

    return make


def put(log: PartitionLog, *pairs: tuple[str, str | None], now_ms: int = NOW_MS, **fields: Any) -> None:
    records = [(key.encode(), None if value is None else value.encode()) for key, value in pairs]
    guard = None
    if fields.get("transactional"):
        guard = log.begin_verification(fields["producer_id"], 0, fields["base_sequence"], supports_epoch_bump=True)
    data = build_batch(records, timestamp_ms=now_ms, **fields)
    result = log.append(data, now_ms=now_ms, guard=guard)
    assert result.error is ErrorCode.none, result


def transact(log: PartitionLog, *pairs: tuple[str, str], commit: bool, producer_id: int = 7) -> None:
    put(log, *pairs, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, commit=commit, producer_id=producer_id)


def compact(log: PartitionLog, now_ms: int = NOW_MS) -> None:
    for _ in log.compact(now_ms):
        pass


def data(log: PartitionLog) -> list[tuple[int, str, str | None]]:
    """Return the data records, as a consumer of the whole log sees them."""
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for stored in log.batches()
        if not parse_header(stored).is_control
        for record in iter_records(stored)
    ]


def markers(log: PartitionLog) -> list[int]:
    return [parse_header(b).base_offset for b in log.batches() if parse_header(b).is_control and list(iter_records(b))]


# compaction


def test_a_compacted_batch_is_a_valid_one_with_its_headers_and_timestamps(make_log: MakeLog) -> None:
    log = make_log()
    values = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    for writer in ("aiokafka", "kafka-python"):
        assert log.append(WRITERS[writer](values), now_ms=NOW_MS).error is ErrorCode.none
    put(log, ("c", "4"))
    compact(log)
    batches = [b for stored in log.batches() for b in foreign_batches(stored)]
    assert [(r.offset, r.key, r.value, r.timestamp) for b in batches for r in b] == [
        (4, b"b", b"2", NOW_MS),
        (5, b"a", b"3", NOW_MS),
        (6, b"c", b"4", NOW_MS),
    ]


def test_tombstones_live_for_delete_retention_ms(make_log: MakeLog) -> None:
    log = make_log(delete_retention_ms=1000)
    put(log, ("a", "1"))
    put(log, ("a", None))
    put(log, ("b", "1"))
    compact(log)
    assert data(log) == [(1, "a", None), (2, "b", "1")]
    put(log, ("b", "2"))
    compact(log, NOW_MS + 999)
    assert data(log) == [(1, "a", None), (2, "b", "1"), (3, "b", "2")]  # b=1 was in the newest segment till now
    put(log, ("b", "3"))
    compact(log, NOW_MS + 1000)
    assert data(log) == [(3, "b", "2"), (4, "b", "3")]
    [record] = [r for stored in log.batches() for r in iter_records(stored) if r.offset == 4]
    assert record.timestamp == NOW_MS


@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_stays_until_its_records_are_gone_and_delete_retention_ms_longer(
    make_log: MakeLog, commit: bool
) -> None:
    log = make_log(delete_retention_ms=1000)
    transact(log, ("a", "1"), commit=commit)
    # the producer goes on, so that nothing of the first transaction has to stay for its sake
    put(log, ("x", "1"), producer_id=7, producer_epoch=1, base_sequence=0)
    put(log, ("a", "2"))
    put(log, ("b", "1"))
    compact(log)  # takes the records
    assert markers(log) == [1]
    put(log, ("b", "2"))
    compact(log, NOW_MS + 5000)  # now the marker has nothing in front of it
    assert markers(log) == [1]
    put(log, ("b", "3"))
    compact(log, NOW_MS + 5999)
    assert markers(log) == [1]
    put(log, ("b", "4"))
    compact(log, NOW_MS + 6000)
    assert markers(log) == []


def test_the_last_batch_of_a_producer_is_recognised_although_its_records_are_gone(
    make_log: MakeLog, tmp_path: Path
) -> None:
    log = make_log()
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    put(log, ("a", "1"), base_sequence=0, **fields)
    put(log, ("a", "2"))
    put(log, ("b", "1"))
    compact(log)
    assert data(log) == [(1, "a", "2"), (2, "b", "1")]
    logs = [log]
    if (tmp_path / "orders-0").exists():
        for name in ("*.snapshot", "*.index"):  # as after the loss of everything but the batches
            for file in (tmp_path / "orders-0").glob(name):
                file.unlink()
        logs.append(open_log(tmp_path / "orders-0"))
    for known in logs:
        again = build_batch([(b"a", b"1")], timestamp_ms=NOW_MS, base_sequence=0, **fields)
        result = known.append(again, now_ms=NOW_MS)
        assert (result.error, result.base_offset) == (ErrorCode.none, 0)


def test_compaction_waits_for_enough_that_is_new(make_log: MakeLog) -> None:
    log = make_log(min_cleanable_dirty_ratio=0.5)
    for number in range(10):
        put(log, (f"key{number}", "1"))
    compact(log)
    put(log, ("key0", "2"))
    put(log, ("key1", "2"))
    compact(log)
    assert len(data(log)) == 12
    for number in range(10):
        put(log, (f"key{number}", "3"))
    compact(log)
    assert len(data(log)) == 11


def test_batches_that_cannot_be_decompressed_stay_and_keep_tombstones(make_log: MakeLog) -> None:
    log = make_log(delete_retention_ms=0)
    snappy = raw_batch(compressed(SNAPPY, record(key=b"\2a")), attributes=SNAPPY, base_timestamp=NOW_MS)
    assert log.append(snappy, now_ms=NOW_MS).error is ErrorCode.none
    put(log, ("a", None))
    put(log, ("b", "1"))
    for second in range(3):
        put(log, ("b", str(second)))
        compact(log, NOW_MS + second * 1000)
    stored = list(log.batches())
    assert parse_header(stored[0]).compression == 2
    assert any(record.key == b"a" and record.value is None for b in stored[1:] for record in iter_records(b))


def test_a_log_that_was_deleted_from_meanwhile_is_left_alone(make_log: MakeLog) -> None:
    log = make_log("compact,delete")
    for number in range(5):
        put(log, ("a", str(number)))
    steps = log.compact(NOW_MS)
    next(steps)
    assert at_once(log.delete_records(3)) is ErrorCode.none
    for _ in steps:
        pass
    assert data(log) == [(3, "a", "3"), (4, "a", "4")]


def test_compaction_survives_a_crash_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashes = 0
    for survived in range(40):
        folder = tmp_path / str(survived) / "orders-0"
        folder.parent.mkdir()
        log = open_log(folder, segment_bytes=200, min_cleanable_dirty_ratio=0.0)
        log.configure(with_topic_configs(log.config, {"cleanup.policy": "compact"}))
        for number in range(8):
            put(log, (f"key{number % 2}", str(number)))
        left = survived

        def step(original: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise KeyboardInterrupt
                left -= 1
                return original(*arguments, **options)

            return counted

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", step(Path.replace))
            patched.setattr(Path, "unlink", step(Path.unlink))
            try:
                compact(log)
            except KeyboardInterrupt:
                crashes += 1
        found = open_log(folder, segment_bytes=200)
        newest = {key: value for _, key, value in data(found)}
        assert newest == {"key0": "6", "key1": "7"}
        assert found.log_end_offset == 8
        assert not list(folder.glob("*.cleaned"))
        assert not (folder / "compaction.json").exists()
        if left > 0:
            break
    assert crashes >= 5
    assert len(data(found)) < 8


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "delete", "begin", "commit", "abort", "compact", "time"]),
            st.sampled_from("abc"),
            st.sampled_from([1, 2]),
        ),
        max_size=50,
    ),
    segment_bytes=st.sampled_from([1, 200, 400]),
)
@settings(max_examples=examples(150), deadline=None)
def test_compaction_never_changes_a_readers_final_values(steps: list[tuple[str, str, int]], segment_bytes: int) -> None:
    config = LogConfig(segment_bytes=segment_bytes, min_cleanable_dirty_ratio=0.0, delete_retention_ms=1000)
    log = PartitionLog("orders", 0, config=with_topic_configs(config, {"cleanup.policy": "compact"}))
    plain = PartitionLog("orders", 0)
    now_ms, epochs, is_open = NOW_MS, {1: 0, 2: 0}, {1: 0, 2: 0}
    for number, (what, key, producer_id) in enumerate(steps):
        if what == "compact":
            compact(log, now_ms)
        elif what == "time":
            now_ms += 1000
        elif what in ("put", "delete"):
            value = None if what == "delete" else str(number).encode()
            for each in (log, plain):
                each.append(build_batch([(key.encode(), value)], timestamp_ms=now_ms), now_ms=now_ms)
        elif what == "begin":
            fields: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": epochs[producer_id]}
            records = build_batch(
                [(key.encode(), str(number).encode())],
                timestamp_ms=now_ms,
                base_sequence=is_open[producer_id],
                transactional=True,
                **fields,
            )
            for each in (log, plain):
                guard = each.begin_verification(**fields, base_sequence=is_open[producer_id], supports_epoch_bump=True)
                result = each.append(records, now_ms=now_ms, guard=guard)
                assert result.error is ErrorCode.none
            is_open[producer_id] += 1
        elif is_open[producer_id]:
            epochs[producer_id] += 1
            is_open[producer_id] = 0
            for each in (log, plain):
                each.append_marker(
                    producer_id=producer_id,
                    producer_epoch=epochs[producer_id],
                    coordinator_epoch=0,
                    commit=what == "commit",
                    transaction_version=2,
                    now_ms=now_ms,
                )
        assert (log.log_end_offset, log.last_stable_offset) == (plain.log_end_offset, plain.last_stable_offset)
        assert table(log) == table(plain)
    assert sorted(log.producers()) == sorted(plain.producers())


def table(log: PartitionLog) -> dict[bytes, bytes]:
    """Return the newest value of each key, as a read_committed reader of the whole log sees it."""
    found: dict[bytes, bytes] = {}
    position = 0
    while True:
        response = log.read(position, max_bytes=300, read_committed=True, at_least_one=True)
        if not response.records:
            return found
        assert response.aborted is not None
        waiting, aborted = sorted(response.aborted, key=lambda row: row[1]), set()
        view = memoryview(response.records)
        while view:
            header = parse_header(view)
            stored, view = view[: header.size_bytes], view[header.size_bytes :]
            position = header.last_offset + 1
            while waiting and waiting[0][1] <= header.last_offset:
                aborted.add(waiting.pop(0)[0])
            records = list(iter_records(stored))
            if header.is_control:
                if records and (records[0].key or b"")[:4] == b"\x00\x00\x00\x00":
                    aborted.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in aborted:
                continue
            for each in records:
                assert each.key is not None
                if each.value is None:
                    found.pop(each.key, None)
                else:
                    found[each.key] = each.value


LARGE = "x" * 2000
SMALLER = {"max.decompressed.message.bytes": "1000"}


def put_packed(log: PartitionLog, *pairs: tuple[str, str], codec: int = GZIP) -> None:
    packed = [(key.encode(), value.encode()) for key, value in pairs]
    assert log.append(WRITERS["aiokafka"](packed, compression=codec), now_ms=NOW_MS).error is ErrorCode.none


def test_a_larger_record_that_was_compacted_before(make_log: MakeLog) -> None:
    """The run finds it while rewriting, after it has replaced the segments before it."""
    log = make_log("compact,delete", segment_bytes=3000, retention_bytes=1)
    for key in ("a", "b"):
        put(log, (key, LARGE))
    put_packed(log, ("c", LARGE))
    put(log, ("newest", LARGE))
    compact(log)
    for value in ("1", "2"):
        put(log, ("a", LARGE[:1999] + value))
    log.configure(with_topic_configs(log.config, SMALLER))
    compact(log)
    at_once(log.delete_old_segments(NOW_MS))
    assert [key for _, key, _ in data(log)] == ["b", "c", "newest", "a", "a"]
    log.configure(with_topic_configs(log.config, {"cleanup.policy": "delete"}))  # which the cleaner does not do
    at_once(log.delete_old_segments(NOW_MS))
    assert [key for _, key, _ in data(log)] == ["a"]


# retention


def test_old_segments_go_by_the_newest_of_their_timestamps(make_log: MakeLog) -> None:
    log = make_log("delete", retention_ms=DAY_MS)
    put(log, ("a", "1"), now_ms=NOW_MS)
    put(log, ("b", "1"), now_ms=NOW_MS + 10)
    put(log, ("c", "1"), now_ms=NOW_MS + 20)
    at_once(log.delete_old_segments(NOW_MS + DAY_MS))
    assert log.log_start_offset == 0
    at_once(log.delete_old_segments(NOW_MS + DAY_MS + 1))
    assert (log.log_start_offset, [offset for offset, _, _ in data(log)]) == (1, [1, 2])
    at_once(log.delete_old_segments(NOW_MS + 2 * DAY_MS))
    assert (log.log_start_offset, log.log_end_offset, data(log)) == (3, 3, [])
    put(log, ("d", "1"))
    assert data(log) == [(3, "d", "1")]


def test_nothing_undecided_and_nothing_unreplicated_goes(make_log: MakeLog) -> None:
    log = make_log("delete", retention_ms=1)
    put(log, ("a", "1"))
    put(log, ("a", "open"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    put(log, ("a", "2"))
    at_once(log.delete_old_segments(NOW_MS + DAY_MS))
    assert log.log_start_offset == 1
    end_transaction(log, commit=True)
    log.hold_high_watermark()
    put(log, ("a", "3"))
    at_once(log.delete_old_segments(NOW_MS + DAY_MS))
    assert log.log_start_offset == 4


# memory


def test_at_the_limit_clients_are_refused_and_coordinators_are_not(caplog: pytest.LogCaptureFixture) -> None:
    budget = MemoryBudget(2000)
    log = PartitionLog("orders", 0, storage=MemoryStorage(budget), config=LogConfig(segment_bytes=500))
    value = build_batch([(None, b"v" * 300)], timestamp_ms=NOW_MS)
    results = [log.append(value, now_ms=NOW_MS) for _ in range(8)]
    refused = [result for result in results if result.error is not ErrorCode.none]
    assert {result.error for result in refused} == {ErrorCode.kafka_storage_error}
    message = refused[0].error_message or ""
    assert "--data-dir" in message
    assert "memory.limit.bytes" in message
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # once
    assert log.append_marker(
        producer_id=1, producer_epoch=0, coordinator_epoch=0, commit=False, transaction_version=2, now_ms=NOW_MS
    ) is (ErrorCode.none)
    log.configure(LogConfig(segment_bytes=500, retention_ms=0))
    at_once(log.delete_old_segments(NOW_MS + 1))
    assert budget.used_bytes == 0
    assert log.append(value, now_ms=NOW_MS).error is ErrorCode.none
    at_once(log.destroy())
    assert budget.used_bytes == 0
