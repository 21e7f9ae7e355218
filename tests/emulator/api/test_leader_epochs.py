"""OffsetForLeaderEpoch over the wire (KIP-320): the ends of epochs, over elections, losses and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.log.record_batch import build_batch
from tests.emulator.api.raw_client import RawClient, plain_batch


def end_of_epoch(client: RawClient, leader_epoch: int, *, topic: str = "t", **values: Any) -> tuple[int, int, int]:
    """Return error, epoch and end offset of the response."""
    partition = {**{"partition": 0, "leader_epoch": leader_epoch, **values}}
    topics = ({"topic": topic, "partitions": (partition,)},)
    (row,) = client.call("offset_for_leader_epoch", 4, replica_id=-1, topics=topics).topics[0].partitions
    return int(row.error_code), row.leader_epoch, row.end_offset


def test_every_start_is_an_election(tmp_path: Path) -> None:
    """There are records of the epochs 0, 1 and 3: the leader of epoch 2 appended nothing."""
    config = BrokerConfig(log_segment_bytes=200)
    for epoch in range(4):
        with (
            Emulator(data_dir=tmp_path / "data", topics={"t": 1}, config=config) as emulator,
            RawClient(emulator.bootstrap_servers) as client,
        ):
            assert emulator.log("t").leader_epoch == epoch
            for _ in range(0 if epoch == 2 else 5):
                client.produce("t", plain_batch(b"1", b"2"))
            if epoch == 3:
                assert end_of_epoch(client, 0) == (0, 0, 10)
                assert end_of_epoch(client, 1) == (0, 1, 20)
                assert end_of_epoch(client, 2) == (0, 1, 20)
                assert end_of_epoch(client, 3) == (0, 3, 30)
                assert end_of_epoch(client, 4) == (0, -1, -1)
                assert end_of_epoch(client, -1) == (0, -1, -1)


def test_lost_records_do_not_count() -> None:
    with Emulator(nodes=2, topics={"t": 1}) as emulator:
        addresses = emulator.bootstrap_servers.split(",")
        leader = emulator.log("t").leader_id
        with RawClient(addresses[leader]) as client:
            client.produce("t", plain_batch(b"kept"))
            emulator.hold_replication("t")
            assert client.produce("t", plain_batch(b"lost"), acks=1).base_offset == 1
            assert end_of_epoch(client, 0) == (0, 0, 2)
            emulator.move_leader("t", 0, 1 - leader)
            assert end_of_epoch(client, 0) == (6, -1, -1)
        with RawClient(addresses[1 - leader]) as client:
            assert end_of_epoch(client, 0) == (0, 0, 1)


LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
TIMES = (LATEST, EARLIEST, MAX_TIMESTAMP, 0, 1000, 2000, 3000, 3001)


def found(client: RawClient, topic: str = "t") -> dict[int, tuple[int, int]]:
    """Return offset and leader epoch of ListOffsets for each of the times."""
    rows = {time: client.list_offsets(topic, time) for time in TIMES}
    return {time: (row.offset, row.leader_epoch) for time, row in rows.items()}


def test_list_offsets_has_the_epoch_of_the_batch(tmp_path: Path) -> None:
    """As Apache Kafka 4.4.0 did over its own restarts."""
    nothing = (-1, -1)
    for epoch in range(3):
        with (
            Emulator(data_dir=tmp_path / "data", topics={"t": 1, "empty": 1}) as emulator,
            RawClient(emulator.bootstrap_servers) as client,
        ):
            begin = 2 * epoch
            earlier = found(client)
            assert earlier[LATEST] == (begin, epoch)
            assert earlier[EARLIEST] == (0, 0)
            assert found(client, "empty")[EARLIEST] == (0, epoch)
            batch = build_batch([(None, b"1"), (None, b"2")], timestamp_ms=1000 * (epoch + 1))
            assert client.produce("t", batch).error_code == 0
    with (
        Emulator(data_dir=tmp_path / "data") as emulator,
        RawClient(emulator.bootstrap_servers) as client,
    ):
        every = {EARLIEST: (0, 0), 0: (0, 0), 1000: (0, 0), 2000: (2, 1), 3000: (4, 2), MAX_TIMESTAMP: (4, 2)}
        assert found(client) == every | {LATEST: (6, 3), 3001: nothing}
        assert client.delete_records("t", 3).error_code == 0
        assert found(client)[EARLIEST] == (3, 1)
        assert client.delete_records("t", 6).error_code == 0
        assert found(client)[EARLIEST] == (6, 3)
