"""Work that is long although no single request is: chunks, pipelines, sessions, segments, and markers that wait."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator, VirtualClock
from dualwrite.broker_emulator.slices import at_once
from tests.emulator.api.raw_client import RawClient, plain_batch
from tests.emulator.hostile.turns import LONGEST, watched
from tests.emulator.inside import cluster_of, is_completing, run_in_loop
from tests.support.conditions import until

CONFIG = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
FEW = 1000
"""Steps of a slice."""
NOW_MS = 1_700_000_000_000


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(config=CONFIG, control="127.0.0.1:0", schema_registry="127.0.0.1:0") as broker:
        yield broker


SEGMENTS = 300


@pytest.fixture
def of_segments(tmp_path: Path) -> Iterator[Emulator]:
    """An emulator with a topic whose records have a segment each."""
    config = dataclasses.replace(CONFIG, log_retention_check_interval_ms=60_000)
    with Emulator(config=config, clock=VirtualClock(NOW_MS), data_dir=tmp_path / "data") as broker:
        broker.create_topic("t", 1, {"segment.bytes": "64"})
        with RawClient(broker.bootstrap_servers) as client:
            for index in range(SEGMENTS):
                assert client.produce("t", plain_batch(b"%d" % index)).error_code == ErrorCode.none
        yield broker


def test_a_log_whose_files_are_deleted_goes_on(of_segments: Emulator) -> None:
    """Records that come between the steps of a deletion stay, even if the process is killed then."""
    log = cluster_of(of_segments).topics["t"].partitions[0].log
    steps = log.delete_records(SEGMENTS - 1)
    run_in_loop(of_segments, lambda: next(steps))
    with RawClient(of_segments.bootstrap_servers) as client:
        assert client.produce("t", plain_batch(b"new")).error_code == ErrorCode.none
    assert [record.offset for record in of_segments.records("t")] == [SEGMENTS - 1, SEGMENTS]
    run_in_loop(of_segments, lambda: at_once(steps))
    assert [record.offset for record in of_segments.records("t")] == [SEGMENTS - 1, SEGMENTS]


@pytest.mark.parametrize("markers", ["wait for replicas", "have no leader"])
def test_a_topic_is_deleted_while_very_many_markers_are_written(markers: str) -> None:
    many = 3000
    with Emulator(config=CONFIG, nodes=2) as emulator:
        cluster = cluster_of(emulator)
        coordinator = run_in_loop(emulator, lambda: cluster.transaction_partition("x").leader_id)
        other = 1 - coordinator
        created = cluster.topic_creation("t", many, assignments=[[other]] * many)
        run_in_loop(emulator, lambda: cluster.changes.make_at_once(created))
        with RawClient(emulator.bootstrap_servers.split(",")[coordinator]) as client, watched(emulator) as turns:
            producer = client.init_producer_id("x")
            client.add_partitions("x", producer, "t", *range(many))
            if markers == "have no leader":
                emulator.stop_node(other)
            else:
                logs = [partition.log for partition in cluster.topics["t"].partitions]
                for log in logs:
                    run_in_loop(emulator, log.hold_high_watermark)
            assert client.end_txn("x", producer, commit=True).error_code == ErrorCode.none
            until(lambda: run_in_loop(emulator, lambda: is_completing(emulator, "x")))
            assert client.delete_topic("t").error_code == ErrorCode.none
            until(lambda: not run_in_loop(emulator, lambda: is_completing(emulator, "x")))
    assert turns.longest < LONGEST
