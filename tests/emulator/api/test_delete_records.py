"""DeleteRecords (KIP-107): copies, open transactions and restarts; the rest is in tests/interop/raw_wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from tests.emulator.api.raw_client import RawClient, batch_of, plain_batch

HIGH_WATERMARK = -1


@pytest.fixture(params=["memory", "disk"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "data"


@pytest.fixture
def emulator(data_dir: Path | None) -> Iterator[Emulator]:
    config = BrokerConfig(log_segment_bytes=300)
    with Emulator(topics={"t": 1}, config=config, data_dir=data_dir) as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            for index in range(10):
                client.produce("t", plain_batch(b"%d" % index))
        yield emulator


def delete(client: RawClient, offset: int, *, topic: str = "t", partition: int = 0) -> tuple[int, int]:
    """Return the error and the low watermark in the response."""
    row = client.delete_records(topic, offset, partition)
    return int(row.error_code), row.low_watermark


def test_unreplicated_records_cannot_be_deleted() -> None:
    with Emulator(nodes=2, topics={"t": 1}) as emulator:
        leader = emulator.log("t").leader_id
        with RawClient(emulator.bootstrap_servers.split(",")[leader]) as client:
            client.produce("t", plain_batch(b"replicated"))
            emulator.hold_replication("t")
            client.produce("t", plain_batch(b"not yet"), acks=1)
            assert delete(client, 2) == (1, -1)
            assert delete(client, HIGH_WATERMARK) == (0, 1)


def test_an_open_transaction_goes_on_behind_the_new_start(emulator: Emulator, client: RawClient) -> None:
    """The rest of the transaction stays undecided, and its abort is not lost."""
    producer = client.init_producer_id("x")
    for sequence in range(3):
        records = batch_of(producer, b"open", sequence=sequence)
        assert client.produce("t", records, transactional_id="x").error_code == 0
    assert delete(client, 12) == (0, 12)
    assert emulator.log("t").last_stable_offset == 12
    assert client.end_txn("x", producer, commit=False).error_code == 0
    read = client.fetch("t", offset=12)
    assert read.last_stable_offset == 14
    assert [row.producer_id for row in read.aborted_transactions] == [producer.producer_id]
