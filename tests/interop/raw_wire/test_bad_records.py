"""Records that a topic refuses (KIP-467): one table of responses for every broker."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.emulator.api.raw_client import RawClient
from tests.interop.conftest import Broker
from tests.interop.wire import Wire
from tests.support.conditions import until
from tests.support.names import next_name

GZIP: Final = 1
TIME: Final = "One or more records have been rejected due to invalid timestamp"
KEY_PROBLEM: Final = "Compacted topic cannot accept message without key in topic partition <topic>-0"
TIME_PROBLEM: Final = (
    "Timestamp <time> of message with offset {} is out of range. The timestamp should be within [<time>]"
)


def keys(total: int, *places: int) -> str:
    shown = ", ".join(f"RecordError(batchIndex={place}, message='{KEY_PROBLEM}')" for place in places[:3])
    return (
        f"One or more records have been rejected due to {total} record errors in total, and only showing the first "
        f"three errors at most: [{shown}]"
    )


class Case(NamedTuple):
    """A batch's records, by letter, and the response: good, keyless, old, late, timeless, x for old and keyless."""

    records: str
    error: int
    message: str | None
    bad: dict[int, str]


COMPACTED: Final = {
    "one of ten": Case("gggkgggggg", 87, keys(1, 3), {3: KEY_PROBLEM}),
    "five of ten": Case("gkgkgkgkgk", 87, keys(5, 1, 3, 5), dict.fromkeys((1, 3, 5, 7, 9), KEY_PROBLEM)),
    "none": Case("ggo", 0, None, {}),
}
LIMITED: Final = {
    "too old, and too far ahead": Case("gogl", 32, TIME, {place: TIME_PROBLEM.format(place) for place in (1, 3)}),
    "the first": Case("og", 32, TIME, {0: TIME_PROBLEM.format(0)}),
    "without a time, and without a key": Case("tk", 0, None, {}),
}
BOTH: Final = {
    "a time, then a key": Case("ok", 32, TIME, {0: TIME_PROBLEM.format(0), 1: KEY_PROBLEM}),
    "a key, then a time": Case("ko", 32, TIME, {0: KEY_PROBLEM, 1: TIME_PROBLEM.format(1)}),
    "both in one record": Case("xg", 87, keys(1, 0), {0: KEY_PROBLEM}),
}
COMPACT: Final = {"cleanup.policy": "compact"}
LIMITS: Final = {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"}
CASES: Final = [
    pytest.param(settings, case, id=name)
    for settings, cases in ((COMPACT, COMPACTED), (LIMITS, LIMITED), (COMPACT | LIMITS, BOTH))
    for name, case in cases.items()
]


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def topic_with(broker: Broker, client: RawClient) -> Any:
    """Creates a topic with settings."""

    def create(settings: dict[str, Any]) -> str:
        name = next_name("checked")
        assert client.create_topic(name, version=5, **settings).error_code == 0
        with Wire(broker.bootstrap_servers) as wire:
            until(lambda: wire.fetch(name).error == 0)
        return name

    return create


def batch_of(records: str, codec: int) -> bytes:
    """A batch with these records, as `Case` has them."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    now_ms = time.time_ns() // 1_000_000
    times = {"o": 5, "x": 5, "l": now_ms + 1_000_000_000, "t": -1}
    for offset, letter in enumerate(records):
        builder.append(offset, times.get(letter, now_ms), None if letter in "kx" else b"key", b"value", [])
    return bytes(builder.build())


@pytest.mark.parametrize("codec", [0, GZIP], ids=["plain", "gzip"])
@pytest.mark.parametrize(("settings", "case"), CASES)
def test_bad_records_are_named(
    client: RawClient, topic_with: Any, settings: dict[str, str], case: Case, codec: int
) -> None:
    topic = topic_with(settings)

    def shown(text: str) -> str:
        text = text.replace(topic, "<topic>")
        return re.sub(r"within \[\d+, \d+\]", "within [<time>]", re.sub(r"Timestamp \d+", "Timestamp <time>", text))

    answer = client.produce(topic, batch_of(case.records, codec), version=11)
    assert answer.error_code == case.error
    assert (answer.error_message and shown(answer.error_message)) == case.message
    assert {bad.batch_index: shown(bad.batch_index_error_message) for bad in answer.record_errors} == case.bad


@pytest.mark.parametrize("version", [3, 7])
def test_older_versions_get_the_error_alone(client: RawClient, topic_with: Any, version: int) -> None:
    assert client.produce(topic_with(COMPACT), batch_of("gk", 0), version=version).error_code == 87
