"""Every codec, read back by librdkafka."""

from __future__ import annotations

from typing import Any

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.client import producer_base
from dualwrite.client.records import compression
from dualwrite.errors import ConfigError
from dualwrite.producer import Producer
from tests.producer.conftest import MakeProducer
from tests.producer.readers import read_with_librdkafka

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize(
    ("name", "level"), [*((name, None) for name in CODECS), ("gzip", 1), ("lz4", 12), ("zstd", 19), ("zstd", -5)]
)
def test_librdkafka_reads_compressed_records(
    emulator: Emulator, make_producer: MakeProducer, name: str, level: int | None
) -> None:
    producer = make_producer(compression_type=name, compression_level=level, two_phase_commit=False)
    producer.init_transactions()
    producer.begin_transaction()
    values = [b"%d " % number * 50 for number in range(2000)] + [b"", b"\x00" * 100_000]
    for value in values:
        producer.send("orders", value)
    producer.commit_transaction()
    assert [record.value() for record in read_with_librdkafka(emulator, "orders", len(values))] == values


@pytest.mark.parametrize("name", ["snappy", "lz4", "zstd"])
def test_a_missing_library_is_named_when_the_producer_is_made(monkeypatch: pytest.MonkeyPatch, name: Any) -> None:
    monkeypatch.setattr(compression, "cramjam", None)
    with pytest.raises(ConfigError, match=rf"compression\.type={name} .*: pip install 'dualwrite\[compression\]'"):
        Producer(bootstrap_servers="127.0.0.1:9", compression_type=name)


@pytest.mark.parametrize(("name", "level"), [("none", 1), ("gzip", 10), ("snappy", 1), ("lz4", 0), ("zstd", 23)])
def test_a_level_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, name: Any, level: int) -> None:
    monkeypatch.setattr(producer_base, "lease_cluster", lambda *_: pytest.fail("a lease that no producer can end"))
    with pytest.raises(ConfigError, match=r"compression.level"):
        Producer(bootstrap_servers="127.0.0.1:9", compression_type=name, compression_level=level)
