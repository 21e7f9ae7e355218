"""Batches are checked before they are stored, with Apache Kafka's errors; none of them delays other clients."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.clock import VirtualClock
from tests.emulator.api.raw_client import RawClient
from tests.emulator.log.bad_batches import (
    CASES,
    GZIP,
    HOUR_MS,
    LOG_APPEND_TIME,
    NOW_MS,
    OK,
    RECORD,
    Case,
    batch,
    record,
    sized,
)

MEBIBYTE = 1 << 20
TOO_LARGE = 10


@pytest.fixture(scope="module")
def broker() -> Iterator[Emulator]:
    """Limits timestamps as Kafka does."""
    config = BrokerConfig(log_message_timestamp_after_max_ms=HOUR_MS)
    with Emulator(config=config, clock=VirtualClock(NOW_MS), topics={"t": 1}) as emulator:
        emulator.create_topic("compacted", 1, {"cleanup.policy": "compact"})
        emulator.create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
        yield emulator


@pytest.fixture(scope="module")
def client(broker: Emulator) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_the_error_is_kafkas(client: RawClient, case: Case) -> None:
    assert client.produce("t", case.records, version=case.version).error_code == case.error


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (batch(RECORD, base_timestamp=2**63 - 1), OK),
        (batch(RECORD, attributes=LOG_APPEND_TIME), 32),
        (batch(RECORD, attributes=LOG_APPEND_TIME, base_timestamp=-1), 32),
    ],
    ids=["late", "stamped", "stamped without a time"],
)
def test_only_the_broker_sets_log_append_time(client: RawClient, records: bytes, error: int) -> None:
    assert client.produce("stamped", records, version=9).error_code == error


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (batch(RECORD, base_timestamp=2**63 - 1), 87),  # keys are checked before times
        (batch(record(key=b"\2k")), OK),
        (batch(record(key=b"\2k") + record(1), count=2), 87),
    ],
    ids=["late and no key", "a key", "one has no key"],
)
def test_records_of_a_compacted_topic_have_keys(client: RawClient, records: bytes, error: int) -> None:
    assert client.produce("compacted", records, version=9).error_code == error


def _gzip_bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([packer.compress(bytes(MEBIBYTE)) for _ in range(200)]) + packer.flush()


def test_a_batch_that_expands_a_thousandfold_is_too_large(client: RawClient) -> None:
    answer = client.produce("t", batch(_gzip_bomb(), attributes=GZIP))
    assert (answer.error_code, "once they are decompressed" in answer.error_message) == (TOO_LARGE, True)


@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize(("size", "error"), [(992, OK), (993, 87)])
def test_the_largest_record_of_a_compressed_batch(
    broker: Emulator, client: RawClient, codec: int, size: int, error: int
) -> None:
    """As in 4.4.0: a record with a key of one byte takes eight bytes more than its value."""
    topic = f"limited-{codec}-{size}"
    broker.create_topic(topic, 1, {"max.decompressed.message.bytes": "1000"})
    body = record(key=sized(b"k"), value=sized(bytes(size)))
    packed = zlib.compress(body, 9, 31) if codec else body
    assert client.produce(topic, batch(packed, attributes=codec)).error_code == (error if codec else OK)
