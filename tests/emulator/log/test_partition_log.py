"""One partition: appends, visibility, reads; the rules for producers are in tests/emulator/wire."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.results import AppendResult
from dualwrite.broker_emulator.log.verification import VerificationGuard
from dualwrite.broker_emulator.slices import at_once
from tests.emulator.log.bad_batches import SNAPPY, compressed, record, varint
from tests.emulator.log.bad_batches import batch as raw_batch
from tests.emulator.log.writers import NOW_MS, batch, read_records

PID = 1000
MAX_BYTES = 1 << 20


@pytest.fixture
def log() -> PartitionLog:
    return PartitionLog("orders", 0)


def append(log: PartitionLog, records: bytes, guard: VerificationGuard | None = None) -> AppendResult:
    return log.append(records, now_ms=NOW_MS, guard=guard)


def end(
    log: PartitionLog,
    *,
    pid: int = PID,
    epoch: int = 1,
    coordinator_epoch: int = 0,
    commit: bool = True,
    transaction_version: int = 2,
) -> ErrorCode:
    return log.append_marker(
        producer_id=pid,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        commit=commit,
        transaction_version=transaction_version,
        now_ms=NOW_MS,
    )


def values(log: PartitionLog, *, read_committed: bool = False, offset: int = 0) -> list[bytes | None]:
    result = log.read(offset, max_bytes=MAX_BYTES, read_committed=read_committed, at_least_one=True)
    assert result.error is ErrorCode.none
    return [record.value for record in read_records(result.records) if not record.is_control]


# --- plain appends ---


def test_memoryviews_are_appended_and_not_kept(log: PartitionLog) -> None:
    received = bytearray(batch(b"a"))
    assert log.append(memoryview(received), now_ms=NOW_MS).error is ErrorCode.none
    received[:] = bytes(len(received))  # the connection reuses its buffer (KAFKA-15653)
    assert values(log) == [b"a"]


# --- idempotence ---


def test_a_guard_of_a_transaction_that_has_ended_is_worth_nothing(log: PartitionLog) -> None:
    """Nor while another verification of the same producer is under way (KAFKA-14884)."""
    records = batch(producer_id=PID, producer_epoch=0, base_sequence=0, transactional=True)
    old = log.begin_verification(PID, 0, 0, supports_epoch_bump=False)
    assert end(log, epoch=0, transaction_version=1) is ErrorCode.none
    new = log.begin_verification(PID, 0, 0, supports_epoch_bump=False)
    assert append(log, records, old).error is ErrorCode.invalid_txn_state
    assert append(log, records, new).error is ErrorCode.none


# --- timestamps ---


def test_times_of_batches_that_only_clients_can_open(log: PartitionLog) -> None:
    records = b"".join(record(index, timestamp_delta=varint(late)) for index, late in enumerate((0, 200, 100)))
    append(
        log,
        raw_batch(compressed(SNAPPY, records), count=3, attributes=SNAPPY, base_timestamp=100, max_timestamp=300),
    )
    assert at_once(log.offset_for_timestamp(250, read_committed=False)) == (0, 100)
    assert at_once(log.offset_for_timestamp(-3, read_committed=False)) == (2, 300)


def test_an_own_record_may_be_too_large() -> None:
    log = PartitionLog("__transaction_state", 0, config=LogConfig(max_message_bytes=100))
    assert log.append_own(b"key", b"x" * 100, now_ms=NOW_MS) is ErrorCode.message_too_large
    assert log.log_end_offset == 0
